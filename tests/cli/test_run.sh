#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi run: how the user's program ended, in one line that names the rank, whatever the code; a signal stops it, and nothing is left.
. "$2/tests/cli/begin.sh"
ends() { # code lines.. -- options and program
    local code=$1 wanted=
    shift
    while [ "$1" != -- ]; do wanted+="$1"$'\n' && shift; done
    shift
    got=$(timeout 60 "$kumi" run "$@" 2>&1 >/dev/null)$'\n'
    local is=$?
    [ "$got" = $'\n' ] && got=
    [ "$is" = "$code" ] && [ "$got" = "$wanted" ] || say "kumi run $*: exit $is, wanted $code: $got"
}
one='[ $RANK = 1 ] || exit 0; '
for code in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 57 70 77 143 255; do
    ends $code "kumi: error: rank died: rank 1: ended with exit code $code" -- -n 2 -- sh -c "$one exit $code"
done
ends 6 'kumi: error: rank died: rank 1: killed by signal 11 (Segmentation fault)' -- -n 2 -- sh -c "$one kill -SEGV \$\$"
got=$("$kumi" run -n 3 -- sh -c 'exit 3' 2>&1 >/dev/null | sed 's/rank [012]:/rank R:/')
[ "$got" = "kumi: error: rank died: rank R: ended with exit code 3"$'\n'"kumi: 2 more of the 3 ranks failed" ] || say "three ranks end with 3: $got"
ends 0 -- -n 3 -- true
ends 2 "kumi: error: kumi run: no program; give it after --: kumi run -n 2 -- ./program" -- --threads 3
ends 2 "kumi: error: kumi run: --threads: 5000; give 1 to 4096" -- --threads 5000 -- true

# KUMI_PIN=1 gives a rank a CPU per thread; without it, two small jobs do not share one while others idle
cpus() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status; }
bound() { timeout 60 "$kumi" run "$@" -- sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status; }
[[ $(KUMI_PIN=1 bound -n 1 --threads 1) =~ ^[0-9]+$ ]] || say "KUMI_PIN=1: $(KUMI_PIN=1 bound -n 1 --threads 1)"
[ "$(KUMI_PIN=0 bound -n 1)" = "$(cpus)" ] || say "KUMI_PIN=0: $(KUMI_PIN=0 bound -n 1), not $(cpus)"
[ "$(bound -n 1 --threads 1)" = "$(cpus)" ] || say "a rank with one thread: $(bound -n 1 --threads 1), not $(cpus)"
[ "$(KUMI_PIN=1 bound -H a:1,b:1 --rsh none --threads 1 | sort -u)" = "$(cpus)" ] || say 'hosts that share a machine are bound'

# the code is that of the rank that failed first and by itself, whichever order ranks are numbered or reaped in
# rank 1 ends, and is reaped, before the others end
later='[ $RANK = 1 ] && { echo $$ >"$0.new" && mv "$0.new" "$0"; exit 57; }
    until [ -e "$0" ]; do sleep 0.02; done
    while kill -0 "$(cat "$0")" 2>/dev/null; do sleep 0.02; done
    sleep 0.1
    exit 3'
for where in '-n 3' '-H a:1,b:2 --rsh none' '-H a:2,b:1 --rsh none'; do
    rm -f "$dir/first"
    # shellcheck disable=SC2086
    got=$(timeout 60 "$kumi" run $where -- sh -c "$later" "$dir/first" 2>&1 >/dev/null)
    [ $? = 57 ] && [[ $got == 'kumi: error: rank died: rank 1'*': ended with exit code 57'* ]] || say "57 of rank 1, $where: $got"
done
"$kumi" run -n 2 -- sh -c 'echo $$ >"$1/pid$RANK"; until [ -e "$1/go$RANK" ]; do sleep 0.02; done; exit $((57 - RANK))' sh "$dir" 2>"$dir/err" &
pid=$!
await [ -s "$dir/pid0" ] && await [ -s "$dir/pid1" ] || say 'the program did not start'
kill -STOP $pid # both have ended when the launcher looks
has_ended() { grep -q '^[0-9]* (sh) Z' "/proc/$(cat "$dir/pid$1")/stat"; }
for r in 1 0; do
    : >"$dir/go$r"
    await has_ended $r || say "rank $r did not end"
done
kill -CONT $pid
wait $pid
code=$?
[ $code = 56 ] && grep -q 'rank 1: ended with exit code 56$' "$dir/err" || say "two ranks between two looks: exit $code: $(cat "$dir/err")"

# the first signal stops the program, and the processes that it started
nap=4711.$$ # of this test alone
started() { [ "$(pgrep -fc "^sleep $nap\$")" = 2 ]; }
gone() { ! pgrep -f "^sleep $nap\$" >/dev/null; }
"$kumi" run -n 2 -- sh -c "sleep $nap & wait" 2>"$dir/err" &
pid=$!
await started || say 'the program did not start'
kill -TERM $pid
wait $pid
code=$?
[ $code = 10 ] && [ "$(cat "$dir/err")" = 'kumi: stopped: signal 15 (Terminated)' ] || say "SIGTERM: exit $code: $(cat "$dir/err")"
await gone || say 'a process of a rank is left after SIGTERM'
# a program that takes its time, and says how it ended
"$kumi" run -n 2 -- bash -c 'trap "sleep 0.8; exit \$RANK" TERM; : >"$1/ready$RANK"; while :; do sleep 0.1; done' bash "$dir" 2>"$dir/err" &
pid=$!
await [ -e "$dir/ready0" ] && await [ -e "$dir/ready1" ] || say 'the program did not start'
kill -TERM $pid
wait $pid
code=$?
[ $code = 1 ] && [ "$(cat "$dir/err")" = 'kumi: error: rank died: rank 1: ended with exit code 1' ] || say "SIGTERM to a program that catches it: exit $code: $(cat "$dir/err")"

# a rank that dies while the others finish or leave the job is named once, whichever of its last arrivals it is
head -c 4096 /dev/zero | tr '\0' a >"$dir/text"
printf '{"model":{"model_type":"gpt2","n_layer":1,"n_head":1,"n_embd":8,"n_positions":8,"vocab_size":256},"data":{"train":"%s/text","tokenizer":"byte"},"train":{"steps":1,"global_batch":2,"eval_every":0},"checkpoint":{"every":0}}' "$dir" >"$dir/config.json"
dies_at() { # n-th arrival of rank 1 -> exit code, lines in err
    KUMI_CHAOS=kill=1@$1 timeout 60 "$kumi" train "$dir/config.json" -n 2 --out "$dir/run" --overwrite >"$dir/out" 2>"$dir/err"
}
last=1 never=4096
while [ $((never - last)) -gt 1 ]; do
    middle=$(((last + never) / 2))
    if dies_at $middle; then never=$middle; else last=$middle; fi
done
for n in $last $((last - 1)) $((last - 2)) $((last - 3)); do
    dies_at $n
    code=$?
    [ "$(grep -c 'error: rank died: rank 1: killed by signal 9' "$dir/err")" = 1 ] && [ $code = 6 ] || say "killed at arrival $n of $last: exit $code: $(cat "$dir/err")"
done
[ $last -gt 4 ] || say "rank 1 arrives $last times"
# a program whose ranks use kumi: those that see the death end with 6, the rank itself with a code of its own
for where in '-n 4' '-H a:2,b:2 --rsh none' '-H a:1,b:3 --rsh none'; do
    for _ in 1 2 3; do
        # shellcheck disable=SC2086
        KUMI_CHAOS=kill=2@$((last / 2)) timeout 60 "$kumi" run $where -- sh -c '"$@"; code=$?; [ $code = 137 ] || exit $code; sleep 0.15; exit 57' sh "$kumi" train "$dir/config.json" \
            --set train.global_batch=4 --out "$dir/run" --overwrite >"$dir/out" 2>"$dir/err"
        code=$?
        [ $code = 57 ] && [ "$(grep -c 'kumi: error: ' "$dir/err")" = 1 ] && grep -q 'rank died: rank 2' "$dir/err" || say "57 in the job, $where: exit $code: $(cat "$dir/err")"
    done
done
exit $failed
