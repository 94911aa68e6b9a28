# SPDX-License-Identifier: Apache-2.0
# The hosts of hosts.sh: two sets at once, names, a link that goes down, limits, and nothing left after the end or a kill.
source=$2
hosts=$source/tests/hosts/hosts.sh
bash "$hosts" with 1 true || { code=$?; [ $code = 77 ] && exit 77; echo "with: exit code $code"; exit 1; }
failed=0
expect() { # what, expected, found
    [ "$2" = "$3" ] || { echo "$1: \"$3\", expected \"$2\""; failed=1; }
}
one() { bash "$hosts" with 3 bash -c "$1"; }
export hosts

one 'bash "$hosts" run h1 hostname; bash "$hosts" agent -x h2 "echo \$(hostname)" two words; exit 9' >"${TMPDIR:-/tmp}/kumi-one.$$" &
first=$!
expect "the second of two sets" h0 "$(one 'bash "$hosts" run h0 hostname')"
wait $first
expect "exit code of the command" 9 $?
expect "names and words" "h1 h2 two words" "$(tr '\n' ' ' <"${TMPDIR:-/tmp}/kumi-one.$$" | sed 's/ $//')"
rm -f "${TMPDIR:-/tmp}/kumi-one.$$"
expect "standard input" word "$(echo word | bash "$hosts" with 1 cat)"
expect "a link down, then up" "down up" "$(one '
    state() { bash "$hosts" run h0 cat /sys/class/net/eth0/carrier | sed "s/0/down/; s/1/up/"; }
    bash "$hosts" link h0 down; a=$(state); bash "$hosts" link h0 up; echo $a $(state)')"
expect "a limit" "100Mbit" "$(one 'bash "$hosts" limit 100mbit; bash "$hosts" run h2 tc qdisc show dev eth0 | sed -n "s/.*rate \([^ ]*\).*/\1/p"')"
expect "another host's shared memory" "" "$(one 'bash "$hosts" run h0 touch /dev/shm/x; bash "$hosts" run h1 ls /dev/shm')"
expect "an unknown host" 2 "$(one 'bash "$hosts" run h7 true 2>/dev/null; echo $?')"

set=$(bash "$hosts" up 2)
KUMI_HOSTS=$set bash "$hosts" run h1 sleep 600 &
sleeper=$!
expect "hosts of up" "$set-h0 $set-h1 $set-hub" "$(ip netns list | grep "^$set-" | sed 's/ .*//' | sort | tr '\n' ' ' | sed 's/ $//')"
KUMI_HOSTS=$set bash "$hosts" down
wait $sleeper
expect "hosts after down" "" "$(ip netns list | grep "^$set-")"

bash "$hosts" with 2 sleep 600 &
with=$!
for ((i = 0; i < 200; i++)); do
    ip netns list | grep -q "^kumi$with-h1" && break
    sleep 0.05
done
kill -TERM $with
wait $with
expect "exit code after SIGTERM" 143 $?
expect "hosts after SIGTERM" "" "$(ip netns list | grep "^kumi$with-")"
[ ! -e "${TMPDIR:-/tmp}/kumi-hosts-kumi$with" ] || { echo "its folder is left"; failed=1; }
exit $failed
