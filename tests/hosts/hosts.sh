#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One machine as several hosts: network namespaces on a bridge, which has a namespace of its own, so
# that nothing outside them changes and two sets can exist at once. Root only; ends with 77 where the
# system refuses.
#
#     hub  10.77.0.254 ─┬─ v0 ── eth0 of h0  10.77.0.1
#                       └─ v1 ── eth0 of h1  10.77.0.2
#
#     hosts.sh with N CMD ..      N hosts for the time of a command, which runs in the hub
#     hosts.sh up N               print the set's name, for KUMI_HOSTS
#     hosts.sh down               end the set's processes, and remove it
#
# Of the set KUMI_HOSTS, which `with` gives its command:
#
#     hosts.sh run HOST CMD ..    on h0, h1, .. (a host name, System V IPC and /dev/shm of its own) or hub
#     hosts.sh agent [-OPTION ..] HOST WORDS ..   in place of ssh: the words are joined and given to sh
#     hosts.sh limit RATE         of every link, each way, as 100mbit; none: no limit
#     hosts.sh link HOST up|down
set -u
net=10.77.0

skip() {
    echo "hosts.sh: $*; skipped" >&2
    exit 77
}
die() {
    echo "hosts.sh: $*" >&2
    exit 2
}
set_name() {
    case ${KUMI_HOSTS:-} in
    kumi[0-9]*) printf '%s' "$KUMI_HOSTS" ;;
    *) die "KUMI_HOSTS: ${KUMI_HOSTS:-unset}; it is what \`hosts.sh up\` prints" ;;
    esac
}
folder_of() { printf '%s/kumi-hosts-%s' "${TMPDIR:-/tmp}" "$1"; }
# The hosts' numbers, from 0
numbers() { ip netns list | sed -n "s/^$1-h\([0-9]*\)\( .*\)\?\$/\1/p"; }

up() { # SET N
    local set=$1 n=$2 i
    case $n in '' | *[!0-9]*) die "up: $n: give a number of hosts from 1 to 200" ;; esac
    [ "$n" -ge 1 ] && [ "$n" -le 200 ] || die "up: $n: give a number of hosts from 1 to 200"
    mkdir -p "$(folder_of "$set")" || return
    printf '127.0.0.1 localhost\n%s.254 hub\n' $net >"$(folder_of "$set")/hosts"
    ip netns add "$set-hub" && ip -n "$set-hub" link set lo up &&
        ip -n "$set-hub" link add name br0 type bridge && ip -n "$set-hub" link set br0 up &&
        ip -n "$set-hub" addr add $net.254/24 dev br0 || return
    for ((i = 0; i < n; i++)); do
        ip netns add "$set-h$i" && ip -n "$set-h$i" link set lo up &&
            ip -n "$set-hub" link add "v$i" type veth peer name eth0 netns "$set-h$i" &&
            ip -n "$set-hub" link set "v$i" master br0 up &&
            ip -n "$set-h$i" addr add $net.$((i + 1))/24 dev eth0 && ip -n "$set-h$i" link set eth0 up || return
        echo "$net.$((i + 1)) h$i" >>"$(folder_of "$set")/hosts"
    done
}

down() { # SET
    local set=$1 name pid
    for name in $(ip netns list | sed -n "s/^\($set-[a-z0-9]*\)\( .*\)\?\$/\1/p"); do
        for pid in $(ip netns pids "$name"); do
            [ "$pid" = $$ ] || kill -9 "$pid" 2>/dev/null
        done
        ip netns del "$name"
    done
    rm -rf "$(folder_of "$set")"
}

run() { # SET HOST CMD ..
    local set=$1 host=$2
    shift 2
    [ -e "/run/netns/$set-$host" ] || die "$host: no such host; there are hub and: $(numbers "$set" | sed 's/^/h/' | tr '\n' ' ')"
    [ "$host" = hub ] && exec ip netns exec "$set-hub" "$@"
    exec ip netns exec "$set-$host" unshare -u -i -m sh -c '
        hostname "$0" && mount -t tmpfs -o size=256m tmpfs /dev/shm && mount --bind "$1" /etc/hosts || exit 77
        shift
        exec "$@"' "$host" "$(folder_of "$set")/hosts" "$@"
}

# What a link may send at once: 4 ms of its rate. A bucket that is refilled late, because the cores are
# busy, loses what does not fit in it: with 4 KB two busy hosts got 0.17 of 1 Gbit/s, with this 0.93.
burst_of() { # RATE
    local kbit
    case $1 in
    *gbit) kbit=$((${1%gbit} * 1000000)) ;;
    *mbit) kbit=$((${1%mbit} * 1000)) ;;
    *kbit) kbit=${1%kbit} ;;
    *) die "limit: $1: give a rate as 100mbit, or none" ;;
    esac
    [ "$kbit" -gt 8000 ] || kbit=8000
    echo "$((kbit * 4 / 1000))kbit"
}

limit() { # SET RATE
    local set=$1 rate=$2 i burst
    [ "$rate" = none ] || burst=$(burst_of "$rate") || exit 2
    for i in $(numbers "$set"); do
        if [ "$rate" = none ]; then
            tc -n "$set-hub" qdisc del dev "v$i" root 2>/dev/null
            tc -n "$set-h$i" qdisc del dev eth0 root 2>/dev/null
        else
            tc -n "$set-hub" qdisc replace dev "v$i" root tbf rate "$rate" burst "$burst" latency 400ms &&
                tc -n "$set-h$i" qdisc replace dev eth0 root tbf rate "$rate" burst "$burst" latency 400ms ||
                die "limit: $rate: tc refuses"
        fi
    done
    return 0
}

[ $# -ge 1 ] || { sed -n '3,22s/^# \?//p' "$0"; exit 2; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip tc unshare; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
verb=$1
shift
case $verb in
with)
    [ $# -ge 2 ] || die "with: give a number of hosts and a command"
    KUMI_HOSTS=kumi$$
    export KUMI_HOSTS
    trap 'down $KUMI_HOSTS' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    up $KUMI_HOSTS "$1" || skip "the system makes no network namespaces or bridges"
    shift
    ip netns exec $KUMI_HOSTS-hub "$@" <&0 & # so that a signal ends the wait
    wait $!
    ;;
up)
    up kumi$$ "${1:-}" || { down kumi$$; skip "the system makes no network namespaces or bridges"; }
    echo kumi$$
    ;;
down | run | agent | limit | link)
    set=$(set_name) || exit
    case $verb in
    down) down "$set" ;;
    run)
        [ $# -ge 2 ] || die "run: give a host and a command"
        run "$set" "$@"
        ;;
    agent)
        while [ "${1#-}" != "${1:-}" ]; do shift; done
        [ $# -ge 2 ] || die "agent: give a host and a command"
        host=$1
        shift
        run "$set" "$host" sh -c "$*"
        ;;
    limit) limit "$set" "${1:-}" ;;
    link)
        case ${2:-} in up | down) ;; *) die "link: ${2:-}: give up or down" ;; esac
        ip -n "$set-hub" link set "v${1#h}" "$2" || die "link: $1: no such host"
        ;;
    esac
    ;;
*) die "$verb: unknown; give with, up, down, run, agent, limit or link" ;;
esac
