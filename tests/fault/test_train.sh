#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs that are killed, stopped and resumed: no rank is left, nothing is lost, and the digest is that of the uninterrupted run.
. "$2/tests/cli/begin.sh"
small=(configs/shakespeare-fast.json --set train.virtual_shards=4 --set train.global_batch=8 --set train.eval_tokens=2048 --set model.n_layer=1 --set model.n_embd=64)
# ranks of the run whose directory is $1: children of its launcher that have it on their command line
ranks() { pgrep -f -- "^/proc/self/exe train .*--out $1( |\$)"; }
runs() { [ "$(ranks "$1" | wc -l)" -ge "$2" ] && [ -s "$1/metrics.jsonl" ]; }
started() { await runs "$@" || say "ranks of $1 did not start"; }
gone() { ! pgrep -f -- "--out $1( |\$)" >/dev/null; }

# SIGTERM: the step is finished, a checkpoint written, exit 10; the resume ends as if nothing had happened
"$kumi" train "${small[@]}" -n 2 --out "$dir/whole" --set train.steps=400 2>/dev/null >"$dir/whole.txt" || say "the whole run failed"
"$kumi" train "${small[@]}" -n 4 --out "$dir/cut" --set train.steps=400 2>"$dir/err" >/dev/null &
pid=$!
started "$dir/cut" 4
kill -TERM $pid
wait $pid
code=$?
[ $code = 10 ] && grep -q '^kumi: stopped: signal 15: step [0-9]*; the state is in ' "$dir/err" || [ $code = 0 ] || say "SIGTERM: exit $code: $(tail -1 "$dir/err")"
"$kumi" train "${small[@]}" -n 1 --out "$dir/cut" --set train.steps=400 --resume >"$dir/cut.txt" 2>"$dir/err" || say "resume: $(cat "$dir/err")"
[ "$(grep digest "$dir/cut.txt")" = "$(grep digest "$dir/whole.txt")" ] || say "the resumed run's digest differs"

# ranks as threads of one process: equal bits; SIGTERM and the resume as with processes
"$kumi" train "${small[@]}" -n 4 --out "$dir/threads" --set train.steps=400 --set parallel.transport=thread 2>"$dir/err" >/dev/null &
pid=$!
await [ -s "$dir/threads/metrics.jsonl" ]
[ -z "$(ranks "$dir/threads")" ] && [ "$(ls /proc/$pid/task 2>/dev/null | wc -l)" -ge 4 ] || say "transport thread: no threads, or other processes"
kill -TERM $pid
wait $pid
code=$?
[ $code = 10 ] && [ "$(tr '\r' '\n' <"$dir/err" | grep -c '^kumi: stopped: signal 15')" = 1 ] || [ $code = 0 ] || say "SIGTERM to threads: exit $code: $(tail -1 "$dir/err")"
"$kumi" train "${small[@]}" -n 2 --out "$dir/threads" --set train.steps=400 --set parallel.transport=thread --resume >"$dir/threads.txt" 2>"$dir/err" || say "resume with threads: $(cat "$dir/err")"
[ "$(grep digest "$dir/threads.txt")" = "$(grep digest "$dir/whole.txt")" ] || say "the digest of ranks as threads differs"

# SIGKILL of a rank: exit 6, named, and no rank left
"$kumi" train "${small[@]}" -n 4 --out "$dir/killed" --set train.steps=1000000 2>"$dir/err" >/dev/null &
pid=$!
started "$dir/killed" 4
kill -KILL "$(ranks "$dir/killed" | sed -n 3p)"
wait $pid
code=$?
[ $code = 6 ] || say "a rank killed: exit $code"
tr '\r' '\n' <"$dir/err" | grep -q '^kumi: error: rank died: rank [0-3]: killed \(by signal 9\|or crashed\)' || say "a rank killed: $(tail -1 "$dir/err")"
await gone "$dir/killed" || say "ranks are left after a rank was killed"

# inside a pipeline: also the instruction is named, which a rank that died between two steps does not have, and the other stages end within a
# second. On a loaded machine that takes longer, so one of four tries must do both, and each ends within ten seconds
died='^kumi: error: rank died: rank [0-3]: killed by signal 9 (Killed); .*\<\(in \)\?[01]\([FIW][0-9]*\|[AO]\) [a-z_]* '
tries=
for try in 1 2 3 4; do
    "$kumi" train configs/shakespeare-fast.json -n 4 --out "$dir/stage$try" --set train.steps=1000000 --set parallel.pp=2 --set parallel.zero=3 --set parallel.pp_schedule=zb-h1 \
        --set train.virtual_shards=2 --set train.micro_batch=8 --set train.global_batch=64 2>"$dir/err" >/dev/null &
    pid=$!
    started "$dir/stage$try" 4
    from=$(date +%s%N)
    kill -KILL "$(ranks "$dir/stage$try" | sed -n ${try}p)"
    wait $pid
    code=$? ms=$((($(date +%s%N) - from) / 1000000))
    [ $code = 6 ] && [ $ms -lt 10000 ] || say "a rank of a pipeline killed: exit $code after $ms ms"
    await gone "$dir/stage$try" || say "ranks are left after one of a pipeline was killed"
    tries+="$ms ms: $(tail -1 "$dir/err"); "
    tr '\r' '\n' <"$dir/err" | grep -q "$died" && [ $ms -le 1000 ] && tries= && break
done
[ -z "$tries" ] || say "no killed rank of a pipeline was named with its instruction within a second: $tries"

# a second signal, a second later, while a rank stands still: all over at once
"$kumi" train "${small[@]}" -n 2 --out "$dir/twice" --set train.steps=1000000 2>"$dir/err" >/dev/null &
pid=$!
started "$dir/twice" 2
kill -STOP "$(ranks "$dir/twice" | sed -n 1p)"
# the launcher counts the second from when it read the first, so until one counts
for _ in $(seq 30); do kill -TERM $pid 2>/dev/null || break; sleep 1.2; done
wait $pid
code=$?
[ $code = 143 ] || say "a second signal: exit $code: $(tail -1 "$dir/err")"
tr '\r' '\n' <"$dir/err" | grep -qx 'kumi: error: stopped: a second signal 15 (Terminated)' || say "a second signal: $(tail -1 "$dir/err")"
await gone "$dir/twice" || say "ranks are left after a second signal"

# SIGKILL of the launcher: no process left
"$kumi" train "${small[@]}" -n 2 --out "$dir/orphan" --set train.steps=1000000 2>/dev/null >/dev/null &
pid=$!
started "$dir/orphan" 2
kill -KILL $pid
wait $pid 2>/dev/null
await gone "$dir/orphan" || say "ranks are left after the launcher was killed"

# a rank that stands still: exit 7, named
"$kumi" train "${small[@]}" -n 2 --out "$dir/still" --set train.steps=1000000 --set parallel.timeout_s=2 2>"$dir/err" >/dev/null &
pid=$!
started "$dir/still" 2
kill -STOP "$(ranks "$dir/still" | sed -n 1p)"
wait $pid
code=$?
[ $code = 7 ] && tr '\r' '\n' <"$dir/err" | grep -q '^kumi: error: time-out: rank [01]: no progress for 2.0 s while rank [01] waited in [a-z].*; its process [0-9]* is stopped: kill -CONT' ||
    say "a rank stopped: exit $code: $(tail -1 "$dir/err")"

# --max-time: as SIGTERM
"$kumi" train "${small[@]}" -n 2 --out "$dir/time" --set train.steps=1000000 --max-time 1 2>"$dir/err" >/dev/null
code=$?
[ $code = 10 ] && grep -q '^kumi: stopped: --max-time reached: step [0-9]*; the state is in ' "$dir/err" || say "--max-time: exit $code: $(tail -1 "$dir/err")"
grep -q '"val_curve"' "$dir/time/summary.json" && ! grep -q '"val_loss"' "$dir/time/summary.json" || say "--max-time: the loss of another step: $(cat "$dir/time/summary.json")"

# two runs in one directory: 11
"$kumi" train "${small[@]}" -n 1 --out "$dir/busy" --set train.steps=1000000 2>/dev/null >/dev/null &
pid=$!
await [ -s "$dir/busy/metrics.jsonl" ]
"$kumi" train "${small[@]}" -n 1 --out "$dir/busy" --resume=auto 2>"$dir/err" >/dev/null
code=$?
[ $code = 11 ] && grep -q 'another run is using it' "$dir/err" || say "two runs in one directory: exit $code: $(cat "$dir/err")"
kill -TERM $pid
wait $pid

# the disk fills up in between: training goes on, the checkpoint before is whole, the failure is said
KUMI_FAULT=write:45 "$kumi" train "${small[@]}" -n 1 --out "$dir/full" --set train.steps=60 --set checkpoint.every=10 2>"$dir/err" >/dev/null
code=$?
[ $code = 5 ] || say "disk full: exit $code: $(tail -1 "$dir/err")"
grep -q "training continues" "$dir/err" || say "disk full: nothing said in between: $(cat "$dir/err")"
"$kumi" ckpt verify "$dir/full" >/dev/null || say "disk full: the checkpoints before are not whole"

# the same while training goes on (checkpoint.async): said at the next checkpoint or at the end, whoever could not write; any single failing call alike
for n in 1 2; do
    KUMI_FAULT=write:45 "$kumi" train "${small[@]}" -n $n --out "$dir/afull$n" --set train.steps=60 --set checkpoint.every=10 --set checkpoint.async=true 2>"$dir/err" >/dev/null
    code=$?
    [ $code = 5 ] || say "disk full, async, $n ranks: exit $code: $(tail -1 "$dir/err")"
    grep -q 'checkpoint: .*: No space left on device; the snapshots before it are untouched; training continues' "$dir/err" || say "disk full, async, $n ranks: nothing said in between: $(cat "$dir/err")"
    [ "$(tr '\r' '\n' <"$dir/err" | grep -c '^kumi: error:')" = 1 ] || say "disk full, async: the error is not said once: $(cat "$dir/err")"
    "$kumi" ckpt verify "$dir/afull$n" >/dev/null || say "disk full, async: the checkpoints before are not whole"
done
for at in 120 135 150 165 180 195 210 225 240 255; do
    KUMI_FAULT=os:$at "$kumi" train "${small[@]}" -n 2 --out "$dir/aos" --overwrite --set train.steps=12 --set checkpoint.every=3 --set checkpoint.async=true 2>"$dir/err" >/dev/null
    code=$?
    # 13: memory that the ranks share, or staging, could not be had
    [ $code = 0 ] || [ $code = 3 ] || [ $code = 5 ] || { [ $code = 13 ] && tr '\r' '\n' <"$dir/err" | grep -qE '^kumi: error: (arena|memory:|memory )'; } || say "call $at fails, async: exit $code: $(tail -1 "$dir/err")"
    "$kumi" ckpt verify "$dir/aos" >/dev/null 2>"$dir/err" || grep -qE 'holds no checkpoint|there is no such directory' "$dir/err" || say "call $at fails, async: $(cat "$dir/err")"
done

# checkpoint.async, at every step: SIGTERM waits for the last, a killed rank leaves whole ones, and the resumed run ends where the whole one did; so do threads, replicas, staging
async=(--set checkpoint.async=true --set checkpoint.every=1 --set checkpoint.keep=2 --set train.steps=400)
"$kumi" train "${small[@]}" "${async[@]}" -n 2 --out "$dir/async" 2>"$dir/err" >/dev/null &
pid=$!
started "$dir/async" 2
kill -TERM $pid
wait $pid
code=$?
[ $code = 10 ] || [ $code = 0 ] || say "SIGTERM, async: exit $code: $(tail -1 "$dir/err")"
newest() { ls "$dir/async/checkpoints" | grep '^step' | tail -1; }
before=$(newest)
has_written() { [ "$(newest)" != "$before" ] || ! kill -0 $pid 2>/dev/null; }
"$kumi" train "${small[@]}" "${async[@]}" -n 4 --out "$dir/async" --resume --set checkpoint.staging_mb=8 2>"$dir/err" >/dev/null &
pid=$!
await has_written || say "no checkpoint of the resumed run: $(tail -1 "$dir/err")"
kill -KILL "$(ranks "$dir/async" | sed -n 2p)" 2>/dev/null
wait $pid
code=$?
[ $code = 6 ] || [ $code = 0 ] || say "a rank killed, async: exit $code: $(tail -1 "$dir/err")"
"$kumi" ckpt verify "$dir/async" >/dev/null || say "a rank killed, async: the checkpoints are not whole"
"$kumi" train "${small[@]}" "${async[@]}" -n 2 --out "$dir/async" --resume --set parallel.share_host_state=false --set checkpoint.every=50 >"$dir/async.txt" 2>"$dir/err" || say "resume, async: $(cat "$dir/err")"
[ "$(grep digest "$dir/async.txt")" = "$(grep digest "$dir/whole.txt")" ] || say "the digest with checkpoint.async differs"
[ "$(ls -A "$dir/async/checkpoints" | wc -l)" = 2 ] || say "checkpoint.async keeps $(ls -A "$dir/async/checkpoints")"

# one flipped byte: named, the one before is taken
"$kumi" train "${small[@]}" -n 1 --out "$dir/flip" --set train.steps=30 --set checkpoint.every=10 2>/dev/null >"$dir/flip.txt" || say "the run to damage failed"
python3 - "$dir/flip/checkpoints/step-00000030/model/model.safetensors" <<'P'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(200000)
    b = f.read(1)
    f.seek(200000)
    f.write(bytes([b[0] ^ 4]))
P
"$kumi" train "${small[@]}" -n 2 --out "$dir/flip" --resume --set train.steps=30 2>"$dir/err" >"$dir/again.txt" || say "resume past damage: $(cat "$dir/err")"
grep -q 'model.safetensors' "$dir/err" || say "the damaged file is not named: $(cat "$dir/err")"
[ "$(grep digest "$dir/again.txt")" = "$(grep digest "$dir/flip.txt")" ] || say "the run resumed past damage ends elsewhere"
exit $failed
