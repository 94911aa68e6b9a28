#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi run on several hosts, which one machine acts as: environment, output, failures, signals, hosts that cannot be reached; no process is left.
. "$2/tests/cli/begin.sh"
mark=6$RANDOM$RANDOM # on the command lines of ranks that wait, and of their children
waits() { [ "$(pgrep -f -- "^sleep $mark" | wc -l)" -ge "$1" ]; }
gone() { ! pgrep -f -- "$mark" >/dev/null; }
wait_forever="sleep $mark & wait"
# run CODE WHAT ARGS..: kumi run ARGS ends with CODE; output in $dir/out, messages in $dir/err
run() {
    local want=$1 what=$2
    shift 2
    timeout 120 "$kumi" run "$@" >"$dir/out" 2>"$dir/err" </dev/null
    local code=$?
    [ $code = "$want" ] || say "$what: exit $code instead of $want: $(cat "$dir/err")"
}
says() { grep -q -e "$2" "$dir/err" || say "$1: no \"$2\" in: $(cat "$dir/err")"; }
once() { [ "$(grep -c '^kumi: ' "$dir/err")" = 1 ] || say "$1: not one line: $(cat "$dir/err")"; }
# start N ARGS..: kumi run ARGS, whose N ranks wait; pid in $pid
start() {
    local n=$1
    shift
    "$kumi" run "$@" -- sh -c "$wait_forever" >"$dir/out" 2>"$dir/err" </dev/null &
    pid=$!
    await waits "$n" || say "$n ranks did not start: $(cat "$dir/err")"
}
ended() { # CODE WHAT
    wait $pid 2>/dev/null
    local code=$?
    [ $code = "$1" ] || say "$2: exit $code instead of $1: $(cat "$dir/err")"
    await gone || say "$2: processes are left"
}
agent() { pgrep -P $pid -f -- "^$kumi agent" | sed -n "$1p"; }

# the environment of each rank
show='echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $WORLD_SIZE $MASTER_ADDR $KUMI_HOST'
run 0 "2 x 2" -H a:2,b:2 --rsh none -- sh -c "$show"
[ "$(sort "$dir/out")" = "0 0 2 0 2 4 127.0.0.1 a
1 1 2 0 2 4 127.0.0.1 a
2 0 2 1 2 4 127.0.0.1 b
3 1 2 1 2 4 127.0.0.1 b" ] || say "2 x 2: $(cat "$dir/out")"
printf 'a slots=2 # first\nb slots=2 max_slots=4\n\nc:2\n' >"$dir/hosts"
run 0 "3 x 2, 5 ranks" --hostfile "$dir/hosts" -n 5 --rsh none -- sh -c "$show"
[ "$(sort "$dir/out" | tail -2)" = "3 1 2 1 3 5 127.0.0.1 b
4 0 1 2 3 5 127.0.0.1 c" ] || say "3 x 2: $(cat "$dir/out")"
run 0 "secret and rendezvous" -H a:1,b:1 --rsh none -- sh -c 'echo "$MASTER_PORT $KUMI_RENDEZVOUS $KUMI_SECRET $KUMI_JOB"'
[ "$(sort -u "$dir/out" | wc -l)" = 1 ] || say "hosts differ: $(cat "$dir/out")"
grep -qE '^[0-9]+ 127\.0\.0\.1:[0-9]+\+16 [0-9a-f]{64} [0-9a-f]{16}$' "$dir/out" || say "rendezvous: $(cat "$dir/out")"
grep -rq "$(cut -d' ' -f3 "$dir/out" | head -1)" /proc/[0-9]*/cmdline 2>/dev/null && say "the secret is on a command line"
KUMI_X=1 OMP_NUM_THREADS=3 run 0 "variables" -H a:1,b:1 --rsh none -- sh -c '[ "$KUMI_X$OMP_NUM_THREADS" = 13 ] && [ "$(pwd)" = "'"$PWD"'" ]'
run 0 "arguments" -H a:1,b:1 --rsh none -- sh -c '[ "$*" = "a b  c'\''d \$x" ]' sh 'a b ' "c'd" '$x'
run 0 "64 hosts" -H "$(seq -s, -f h%g 1 64)" --rsh none -- true
# a launcher per node, as torchrun's
for r in 0 1; do
    run 0 "node $r" --nproc-per-node 2 --nnodes=2 --node_rank $r --master-addr 127.0.0.1 --master-port 4567 -- sh -c "$show; echo \$MASTER_PORT \$KUMI_RENDEZVOUS"
    [ "$(sort "$dir/out")" = "$((2 * r)) 0 2 $r 2 4 127.0.0.1
$((2 * r + 1)) 1 2 $r 2 4 127.0.0.1
4567 127.0.0.1:4568+16
4567 127.0.0.1:4568+16" ] || say "node $r: $(cat "$dir/out")"
done

run 0 "torchrun's cpu" --nproc-per-node cpu -- sh -c 'echo $WORLD_SIZE'
[ "$(sort -u "$dir/out")" = "$(wc -l <"$dir/out")" ] || say "torchrun's cpu: $(cat "$dir/out")"

# lines of all ranks stay whole; those of stderr have rank and host before them
run 0 "output" -H a:2,b:2 --rsh none -- sh -c 'i=0; while [ $i -lt 3000 ]; do echo "$RANK: $i 0123456789012345678901234567890123456789"; echo "$i of $RANK" >&2; i=$((i+1)); done; printf "end $RANK"'
for r in 0 1 2 3; do
    [ "$(grep -c "^\(end [0-3]\)*$r: [0-9]* 0123456789012345678901234567890123456789\$" "$dir/out")" = 3000 ] || say "output of rank $r: $(grep -vcE '^[0-3]: [0-9]+ [0-9]{40}$' "$dir/out") lines are torn"
    [ "$(grep -c "^\[$r [ab]\] [0-9]* of $r\$" "$dir/err")" = 3000 ] || say "stderr of rank $r: $(grep -c "of $r\$" "$dir/err") lines"
    grep -q "end $r" "$dir/out" || say "the line of rank $r that does not end is lost"
done
"$kumi" run -H a:2,b:2 --rsh none -- sh -c 'seq 20000' 2>"$dir/err" | head -1 >/dev/null
[ "${PIPESTATUS[0]}" = 5 ] || say "output that nothing reads: $(cat "$dir/err")"

# failures
run 5 "exit code" -H a:2,b:2 --rsh none -- sh -c "[ \$RANK != 2 ] || exit 5; $wait_forever"
says "exit code" '^kumi: error: rank died: rank 2 on host b: ended with exit code 5$'
once "exit code"
run 6 "killed rank" -H a:2,b:2,c:2 --rsh none -- sh -c "[ \$RANK != 5 ] || kill -KILL \$\$; $wait_forever"
says "killed rank" '^kumi: error: rank died: rank 5 on host c: killed by signal 9 (Killed)$'
once "killed rank"
run 7 "all fail" -H a:2,b:2 --rsh none -- sh -c 'exit 7'
[ "$(grep -c '^kumi: error: ' "$dir/err")" = 1 ] || say "all fail: $(cat "$dir/err")"
run 2 "no program" -H a:2,b:2 --rsh none -- /nonexistent/program
says "no program" '^kumi: error: launch: host [ab]: /nonexistent/program: No such file'
once "no program"
await gone || say "processes are left after failures"

# SIGKILL of the launcher, of an agent; all descendants of the ranks end
start 4 -H a:2,b:2 --rsh none
kill -KILL $pid
ended 137 "launcher killed"
start 4 -H a:2,b:2 --rsh none
kill -KILL "$(agent 2)"
ended 6 "agent killed"
says "agent killed" '^kumi: error: host [ab] lost: ranks [02] to [13]: its agent was killed by signal 9 (Killed)$'
once "agent killed"
start 4 -H a:2,b:2 --rsh none
kill -STOP "$(agent 1)"
kill -KILL $pid
ended 137 "launcher killed, an agent stopped"

# signals
for what in launcher agent; do
    start 4 -H a:2,b:2 --rsh none
    if [ $what = agent ]; then kill -TERM "$(agent 1)"; else kill -TERM $pid; fi
    ended 10 "SIGTERM of the $what"
    says "SIGTERM of the $what" '^kumi: stopped: signal 15 (Terminated)$'
done
"$kumi" run -H a:2,b:2 --rsh none -- sh -c "trap '' TERM; echo ready; $wait_forever" >"$dir/out" 2>"$dir/err" </dev/null &
pid=$!
ready() { [ "$(grep -c ready "$dir/out")" = 4 ]; }
await ready || say "ranks that ignore SIGTERM did not start"
kill -TERM $pid
again() { kill -TERM $pid 2>/dev/null; ! kill -0 $pid 2>/dev/null; }
await again || say "SIGTERM, again and again: the job goes on"
ended 143 "two signals"
says "two signals" '^kumi: error: stopped: a second signal 15 (Terminated)$'

# a remote shell: ssh's words when it fails, a host's greeting, quoting, one version of kumi
cat >"$dir/rsh" <<'END'
#!/bin/sh
[ "$1" = -p ] && shift 2
case $1 in
    unknown) echo "ssh: Could not resolve hostname $1: Name or service not known" >&2; exit 255 ;;
    bare) exec sh -c "exec /nonexistent/kumi agent" ;;
    loud) echo "Welcome to $1"; printf 'no newline' ;;
    silent) exec sleep 600 ;;
    late) # reads late: all that waits arrives at once
        mkfifo "$0.late"
        exec 3<&0 <>"$0.late" 4>&0
        (sleep 1; exec cat) <&3 >&4 2>/dev/null &
        exec 3<&- 4>&- ;;
    old) printf '\1kumi agent\n\5\0\0\0\0\0\0\0\143\0\0\0\0\0\0\0'; exec sleep 600 ;;
    other) printf '\1kumi agent\n\5\0\0\0\0\0\0\0\1\0\0\0\5\0\0\0000.0.9'; exec sleep 600 ;;
    junk) exec yes ;;
esac
cd /
exec env -i PATH="$PATH" sh -c "$2"
END
chmod +x "$dir/rsh"
cp "$kumi" "$dir/kumi of 'mine'"
run 0 "remote shell" -H loud:2,b:2 --rsh "$dir/rsh -p 22" -- sh -c 'echo $RANK $(pwd) $MASTER_ADDR'
[ "$(sort "$dir/out")" = "$(for r in 0 1 2 3; do echo "$r $PWD loud"; done)" ] || say "remote shell: $(cat "$dir/out")"
kumi="$dir/kumi of 'mine'" run 0 "path of kumi" -H a:1,b:1 --rsh "$dir/rsh" -- true
run 5 "the end comes with the job" -H late:2,b:2 --rsh "$dir/rsh" -- sh -c "[ \$RANK != 2 ] || exit 5; $wait_forever"
once "the end comes with the job"
run 6 "unknown host" -H a:1,unknown:1 --rsh "$dir/rsh" -- touch "$dir/ran"
says "unknown host" '^kumi: error: launch: host unknown: .*/rsh ended with exit code 255: ssh: Could not resolve hostname unknown: Name or service not known; check'
once "unknown host"
[ ! -e "$dir/ran" ] || say "a rank ran before all hosts had answered"
run 6 "kumi missing" -H a:1,bare:1 --rsh "$dir/rsh" -- true
says "kumi missing" 'host bare: .*/nonexistent/kumi: not found; kumi must have the same path on every host'
run 2 "another version" -H a:1,old:1 --rsh "$dir/rsh" -- true
says "another version" 'host old: its kumi is unknown (interface 99), the launcher [0-9.]* (3); install the same version'
run 2 "another version" -H a:1,other:1 --rsh "$dir/rsh" -- true
says "another version" 'host other: its kumi is 0\.0\.9 (interface 1), the launcher [0-9.]* (3); install the same version'
run 2 "no agent" -H a:1,junk:1 --rsh "$dir/rsh" -- true
says "no agent" 'host junk: 64 KiB of output before'
run 2 "no remote shell" -H a:1,b:1 --rsh "$dir/none" -- true
says "no remote shell" 'none: No such file or directory; install it'
"$kumi" run -H a:1,silent:1 --rsh "$dir/rsh" -- true >"$dir/out" 2>"$dir/err" &
pid=$!
await pgrep -P $pid >/dev/null
kill -TERM $pid
ended 10 "SIGTERM before all hosts answer"
says "SIGTERM before all hosts answer" 'stopped: signal 15 (Terminated): before all hosts had answered'
"$kumi" run -H a:1,silent:1 --rsh "$dir/rsh" -- true >"$dir/out" 2>"$dir/err" &
pid=$!
connects() { shell=$(pgrep -P $pid -x sleep); }
await connects || say "the remote shell did not start"
kill -KILL $pid
wait $pid 2>/dev/null
lives() { grep -q sleep "/proc/$shell/cmdline" 2>/dev/null; }
for _ in $(seq 20); do lives || break; sleep 0.1; done
lives && say "launcher killed before all hosts answer: the remote shell is left" && kill "$shell"

# ssh itself: the options that keep it from waiting, those of --rsh before them, one word for the remote shell
options=(-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3)
! command -v ssh >/dev/null || ssh -G "${options[@]}" b >"$dir/out" 2>&1 || say "ssh's options: $(cat "$dir/out")" # it only parses them
mkdir "$dir/ssh-bin"
cat >"$dir/ssh-bin/ssh" <<END
#!/bin/sh
options="${options[*]}"
END
cat >>"$dir/ssh-bin/ssh" <<'END'
[ $# = 13 ] && [ "$1 $2" = "-p 2222" ] && shift 2 || exit 90
for want in $options; do
    [ "$1" = "$want" ] && shift || exit 91
done
[ "$1" = b ] && shift || exit 92
cd / && exec env -i PATH="$PATH" sh -c "$1"
END
chmod +x "$dir/ssh-bin/ssh"
PATH=$dir/ssh-bin:$PATH run 0 "ssh" -H localhost:1,b:1 --rsh "ssh -p 2222" -- sh -c 'echo $RANK'
[ "$(sort "$dir/out" | tr '\n' ' ')" = "0 1 " ] || say "ssh: $(cat "$dir/out" "$dir/err")"

# this host, by name: its ranks write to the terminal or file themselves
run 0 "local host" -H localhost:2 -- sh -c 'echo $RANK; echo plain >&2'
[ "$(sort "$dir/out" | tr '\n' ' ')" = "0 1 " ] && [ "$(grep -c '^plain$' "$dir/err")" = 2 ] || say "local host: $(cat "$dir/out" "$dir/err")"
run 0 "local and remote host" -H localhost:1,b:1 --rsh "$dir/rsh" -- sh -c 'echo $RANK; echo from $RANK >&2'
[ "$(sort "$dir/out" | tr '\n' ' ')" = "0 1 " ] && grep -q '^from 0$' "$dir/err" && grep -q '^\[1 b\] from 1$' "$dir/err" || say "local and remote: $(cat "$dir/out" "$dir/err")"

# usage
run 2 "too many ranks" -H a:2,b:2 -n 5 --rsh none -- true
says "too many ranks" 'rank count: -n: 5, but the 2 hosts have 4 slots'
run 2 "a host twice" -H a:2,b:2,a:2 --rsh none -- true
says "a host twice" 'a stands at places 1 and 3'
run 3 "no hostfile" --hostfile "$dir/missing" -- true
run 2 "two lists" -H a --hostfile "$dir/hosts" -- true
run 2 "--rsh alone" -n 2 --rsh ssh -- true
run 2 "-H and --nnodes" -H a --nnodes 2 -- true
run 2 "no address" --nproc-per-node 2 --nnodes 2 -- true
says "no address" 'no --master-addr'
run 2 "node rank" --nnodes 2 --node-rank 2 --master-addr a -- true
RANK=0 WORLD_SIZE=2 run 2 "two launchers" -H a:2,b:2 --rsh none -- true
says "two launchers" 'the environment (RANK and WORLD_SIZE) says 2'
"$kumi" agent </dev/null >"$dir/out" 2>&1 || true
[ "$(head -c 1 "$dir/out" | od -An -tu1 | tr -d ' ')" = 1 ] || say "an agent without a launcher: $(head -c 100 "$dir/out")"
"$kumi" help | grep -q agent && say "kumi help lists the agent"
exit $failed
