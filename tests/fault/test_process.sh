#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Signals at every moment of a start, the launcher's guard killed, limits of the process: one line, the right exit code, no process left.
. "$2/tests/cli/begin.sh"
small=(configs/shakespeare-fast.json --set train.virtual_shards=4 --set train.global_batch=8 --set train.eval_tokens=2048 --set model.n_layer=1)
ranks() { pgrep -f -- "^/proc/self/exe train .*--out $1( |\$)"; }
runs() { [ "$(ranks "$1" | wc -l)" -ge "$2" ] && [ -s "$1/metrics.jsonl" ]; }
started() { await runs "$@" || say "ranks of $1 did not start"; }
gone() { ! pgrep -f -- "--out $1( |\$)" >/dev/null; }

# SIGKILL of the launcher's guard, then of the launcher: another guard takes its place, no process is left
"$kumi" train "${small[@]}" -n 2 --out "$dir/guard" --set train.steps=1000000 2>"$dir/err" >/dev/null &
pid=$!
started "$dir/guard" 2
for rank in $(ranks "$dir/guard"); do [ "$(cat "/proc/$rank/comm")" = kumi ] || say "top shows a rank as $(cat "/proc/$rank/comm")"; done
guard=$(pgrep -P $pid -f -- "^$kumi train ")
kill -KILL "$guard"
await grep -q 'the guard process was killed' "$dir/err"
[ "$(pgrep -c -P $pid)" = 3 ] && [ "$(pgrep -P $pid -f -- "^$kumi train ")" != "$guard" ] || say "the guard killed: $(tail -1 "$dir/err")"
kill -KILL $pid
wait $pid 2>/dev/null
await gone "$dir/guard" || say "processes are left after the guard and the launcher were killed"

# a signal that asks to stop, at any moment of the start: exit 10, the state saved, no process left
python3 -B tests/fault/signals.py "$kumi" "$(mktemp -d -p "$dir")" 30 >"$dir/err" || say "signals at the start: $(cat "$dir/err")"

# whether process $1 catches or blocks SIGTERM (bit 14)
catches() { (( (0x$(sed -n 's/^SigCgt:\t//p' "/proc/$1/status") | 0x$(sed -n 's/^SigBlk:\t//p' "/proc/$1/status")) & 1 << 14 )); }
# such a signal while the ranks join another launcher's job
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 10000)) MASTER_ADDR=127.0.0.1 "$kumi" train "${small[@]}" --out "$dir/join" 2>"$dir/err" >/dev/null &
pid=$!
await catches $pid
kill -TERM $pid
wait $pid
code=$?
[ $code = 10 ] && grep -q 'stopped: signal 15 (Terminated): before all ranks had joined' "$dir/err" || say "SIGTERM while ranks join: exit $code: $(cat "$dir/err")"

# a rank whose peer never comes waits for parallel.timeout_s, and no longer
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 10000)) MASTER_ADDR=127.0.0.1 timeout 120 "$kumi" train "${small[@]}" --set parallel.timeout_s=0.5 --out "$dir/alone" 2>"$dir/err" >/dev/null
code=$?
[ $code = 7 ] && grep -q 'join: rank 1 of 2 did not connect in time' "$dir/err" || say "joining with parallel.timeout_s: exit $code: $(cat "$dir/err")"

# so does an evaluation, by the run's parallel.timeout_s
"$kumi" train "${small[@]}" --set parallel.timeout_s=0.5 --set train.steps=1 --out "$dir/brief" >"$dir/err" 2>&1 || say "a run of one step: $(cat "$dir/err")"
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 10000)) MASTER_ADDR=127.0.0.1 timeout 120 "$kumi" eval "$dir/brief" 2>"$dir/err" >/dev/null
code=$?
[ $code = 7 ] && grep -q 'join: rank 1 of 2 did not connect in time' "$dir/err" || say "joining an evaluation: exit $code: $(cat "$dir/err")"

# SIGHUP is ignored where nohup says so
(trap '' HUP; exec "$kumi" train "${small[@]}" -n 2 --out "$dir/nohup" --set train.steps=1000000 2>"$dir/err" >/dev/null) &
pid=$!
started "$dir/nohup" 2
kill -HUP $pid
sleep 0.3
[ "$(ranks "$dir/nohup" | wc -l)" = 2 ] || say "SIGHUP under nohup: $(tail -1 "$dir/err")"
kill -TERM $pid
wait $pid
[ $? = 10 ] || say "SIGTERM after SIGHUP: $(tail -1 "$dir/err")"

# a limit of files' size: a checkpoint that exceeds it is not written and training goes on; shared memory is told apart
(ulimit -f 1500; "$kumi" train "${small[@]}" -n 1 --out "$dir/limit" --set train.steps=30 --set checkpoint.every=10 2>"$dir/err" >/dev/null)
code=$?
[ $code = 5 ] && grep -q 'File too large.*training continues' "$dir/err" || say "file size limit: exit $code: $(tail -1 "$dir/err")"
(ulimit -f 1500; "$kumi" train "${small[@]}" -n 2 --out "$dir/limit2" 2>"$dir/err" >/dev/null)
code=$?
[ $code = 5 ] && grep -q '^kumi: error: control segment: [0-9]* bytes of shared memory: File too large; raise the limit' "$dir/err" || say "file size limit, 2 ranks: exit $code: $(tail -1 "$dir/err")"
exit $failed
