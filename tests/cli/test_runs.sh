#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run's directory: replaced only by a run that steps, resumed only from what can be read, and no line, checkpoint or summary is lost on the way.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 data/tinyshakespeare.txt >"$dir/text"
run=(train configs/shakespeare-fast.json --set data.train="$dir/text" --set model.n_layer=1 --set train.eval_tokens=64 --set train.global_batch=2
    --set train.log_every=1 --set train.steps=8)
# names, times and sizes of all files, and their contents
state() { (cd "$1" && find . -printf '%p %s %T@ %i\n' | sort && find . -type f ! -name lock -exec md5sum {} + | sort); }
expect() { # code text command..: exit code, one error line, which has the text
    local code=$1 text=$2 got is
    shift 2
    got=$("$kumi" "$@" 2>&1 >/dev/null)
    is=$?
    [ $is = "$code" ] && [ "$(printf '%s\n' "$got" | grep -c '^kumi: error:')" = 1 ] && printf '%s' "$got" | grep -qF -- "$text" ||
        say "kumi $*: exit $is, wanted $code and '$text': $got"
}
make() { "$kumi" "${run[@]}" "$@" >"$dir/out" 2>"$dir/err" || say "$* failed: $(cat "$dir/err")"; }
steps() { echo $(ls "$1" | sed 's/step-0*//'); } # of a folder of checkpoints
lines() { echo $(sed -E 's/.*"(step|cut_at_step)":([0-9]+).*"?(val_loss)?.*/\2/' "$1"); }

# --overwrite: whatever ends the new run before its first step, the old one stays as it is
make --out "$dir/old" --until 3
before=$(state "$dir/old")
printf '{"model":{"model_type":"gpt2"},\n "data":{"train":"x"},\n "train":{"stepz":1}}' >"$dir/key.json"
over=(--out "$dir/old" --overwrite)
expect 2 'unknown key' train "$dir/key.json" "${over[@]}"
expect 2 'cannot be read' train "$dir/none.json" "${over[@]}"
expect 3 'No such file' "${run[@]}" "${over[@]}" --set data.train="$dir/none"
expect 2 'virtual_shards: 2 on 3 ranks' "${run[@]}" "${over[@]}" -n 3
expect 2 'virtual_shards: 2 on 3 ranks' "${run[@]}" "${over[@]}" -n 3 --set parallel.transport=thread
expect 5 'offload' "${run[@]}" "${over[@]}" --set 'memory.offload={"optimizer":"file","path":"/proc/none"}'
make --out "$dir/big" --until 1 --set optimizer.lr=1e30 --set schedule.warmup_steps=0
expect 9 'there is no checkpoint yet; lower optimizer.lr' "${run[@]}" "${over[@]}" --set model.path="$dir/big/checkpoints/step-00000001/model"
expect 2 '--overwrite and --resume exclude each other' "${run[@]}" "${over[@]}" --resume
expect 2 '--overwrite and --resume exclude each other' "${run[@]}" "${over[@]}" --resume=auto -n 2
grep -qw amx_bf16 /proc/cpuinfo || expect 14 'parallel.isa: amx' "${run[@]}" "${over[@]}" --set parallel.isa=amx
[ "$(state "$dir/old")" = "$before" ] || say "--overwrite changed the old run before the first step: $(state "$dir/old" | diff - <(echo "$before"))"
# a stop before the first step, with --overwrite and with --resume: nothing is written
stops() { # text option..: exit code 10, one line that says where the state is, no file changed
    local text=$1 before got is
    shift
    before=$(state "$dir/old")
    got=$("$kumi" "${run[@]}" --out "$dir/old" "$@" --max-time 0.001 2>&1 >"$dir/out")
    is=$?
    [ $is = 10 ] && [ "$(grep -c '^kumi: stopped: ' <<<"$got")" = 1 ] && grep -qxF "kumi: stopped: --max-time reached: $text" <<<"$got" || say "stopped at once, $*: exit $is: $got"
    [ "$(state "$dir/old")" = "$before" ] || say "stopped before the first step, $* changed $(state "$dir/old" | diff - <(echo "$before"))"
}
make --out "$dir/old" --resume --until 6
at=$dir/old/checkpoints/step-0000000
for ranks in 1 2; do
    stops "step 0; nothing was written into $dir/old" --overwrite -n $ranks
    [ -s "$dir/out" ] && say "a result of no run: $(cat "$dir/out")"
    stops "step 3; the state is in ${at}3" --resume=step:3 -n $ranks
    grep -qx "checkpoint: ${at}3" "$dir/out" && grep -q '^digest: ' "$dir/out" || say "stopped after a resume: $(cat "$dir/out")"
    stops "step 6; the state is in ${at}6" --resume -n $ranks
done
rm -r "$dir/old"
"$kumi" "${run[@]}" --out "$dir/old" --overwrite --max-time 0.001 2>&1 >/dev/null | grep -qxF "kumi: stopped: --max-time reached: step 0; the state is in ${at}0" || say 'an empty directory: no step 0'
make --out "$dir/old" --overwrite --until 3
# killed while the old run goes: the next run finds all of it, or nothing
content() { (cd "$1" && find . -type f ! -name lock -exec md5sum {} + | sort); }
before=$(content "$dir/old")
for at in 36 38 40 42 44 46 48 50 52; do
    [ -e "$dir/old/metrics.jsonl" ] || break
    (KUMI_FAULT=kill:$at exec "$kumi" "${run[@]}" "${over[@]}" >/dev/null 2>&1)
    [ -e "$dir/old/checkpoints" ] || [ -e "$dir/old/.replaced" ] || break
    make --out "$dir/old" --resume --until 3
    [ "$(content "$dir/old")" = "$before" ] || say "killed at call $at: $(content "$dir/old" | diff - <(echo "$before"))"
done 2>/dev/null
make "${over[@]}" --until 1
[ "$(steps "$dir/old/checkpoints")" = 1 ] && [ "$(lines "$dir/old/metrics.jsonl")" = '1 1' ] && [ "$(ls -A "$dir/old" | tr '\n' ' ')" = 'checkpoints lock metrics.jsonl summary.json ' ] ||
    say "--overwrite left $(ls -A "$dir/old"), $(lines "$dir/old/metrics.jsonl")"

# --resume=auto: afresh without checkpoints, and exit 4 where there are some that cannot be read
make --out "$dir/r" --until 3 --resume=auto
grep -q 'no checkpoint to resume; starting a new run' "$dir/err" || say "afresh without a word: $(cat "$dir/err")"
for how in --resume --resume=auto; do
    for what in longer missing empty loop file; do
        cp -a "$dir/r" "$dir/bad"
        manifest=$dir/bad/checkpoints/step-00000003/manifest.json
        case $what in
        longer) printf x >>"$manifest" ;;
        missing) rm "$manifest" ;;
        empty) rm -r "$dir/bad/checkpoints/step-00000003"/* ;;
        loop) rm -r "$dir/bad/checkpoints" && ln -s checkpoints "$dir/bad/checkpoints" ;;
        file) rm -r "$dir/bad/checkpoints" && echo x >"$dir/bad/checkpoints" ;;
        esac
        before=$(state "$dir/bad")
        expect 4 "$dir/bad" "${run[@]}" --out "$dir/bad" $how
        [ "$(state "$dir/bad")" = "$before" ] || say "$how over a checkpoint that is $what changed files"
        rm -r "$dir/bad"
    done
done

# a finished run: said, and no file is changed; --until and train.steps extend it
make --out "$dir/whole"
digest=$(grep digest "$dir/out")
before=$(state "$dir/r")
for more in '--until 3' '--until 2' '-n 2 --until 3' '--resume=step:3 --until 3' '--until 3 --profile'; do
    make --out "$dir/r" --resume $more
    grep -q 'complete at step 3, nothing is written; a later --until, or none, continues it to step 8, --set train.steps=N beyond' "$dir/err" || say "finished, $more: $(cat "$dir/err")"
    grep -q '^digest: sha256' "$dir/out" && grep -q '^validation loss: [0-9]' "$dir/out" || say "finished, $more: $(cat "$dir/out")"
    [ "$(state "$dir/r")" = "$before" ] || say "finished, $more: $(state "$dir/r" | diff - <(echo "$before"))"
done
make --out "$dir/r" --resume=auto
[ "$(grep digest "$dir/out")" = "$digest" ] || say "a run resumed at --until ends elsewhere"
[ "$(lines "$dir/r/metrics.jsonl")" = '1 2 3 3 4 5 6 7 8 8' ] && [ ! -e "$dir/r/metrics.cut.jsonl" ] || say "lines: $(lines "$dir/r/metrics.jsonl")"
before=$(state "$dir/r")
make --out "$dir/r" --resume
grep -q 'complete at step 8, nothing is written; --set train.steps=N, N above 8, extends it' "$dir/err" || say "finished: $(cat "$dir/err")"
[ "$(state "$dir/r")" = "$before" ] || say "finished: $(state "$dir/r" | diff - <(echo "$before"))"
make --out "$dir/r" --resume --set train.steps=10
[ "$(lines "$dir/r/metrics.jsonl")" = '1 2 3 3 4 5 6 7 8 8 9 10 10' ] || say "extended: $(lines "$dir/r/metrics.jsonl")"

# killed between the last checkpoint and summary.json: the end is written, the evaluation stands once, medians stay
cp "$dir/r/summary.json" "$dir/summary"
cp "$dir/r/metrics.jsonl" "$dir/metrics"
python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); del s["val_loss"]; json.dump(s, open(sys.argv[1], "w"))' "$dir/r/summary.json"
make --out "$dir/r" --resume --set train.steps=10
python3 -c 'import json, sys; a, b = (json.load(open(p)) for p in sys.argv[1:]); b["memory_pss_bytes"] = a["memory_pss_bytes"]; b["limits"] = a["limits"]; assert a == b, (a, b)' "$dir/summary" "$dir/r/summary.json" || say "the completed summary differs"
cmp "$dir/metrics" "$dir/r/metrics.jsonl" || say "the completed run has other lines"
# a loss that is not finite, null in the summary, is one: the evaluation is not repeated
python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); s["val_loss"] = None; json.dump(s, open(sys.argv[1], "w"))' "$dir/r/summary.json"
before=$(state "$dir/r")
make --out "$dir/r" --resume --set train.steps=10
grep -q 'complete at step 10, nothing is written' "$dir/err" && [ "$(state "$dir/r")" = "$before" ] || say "finished without a finite loss: $(cat "$dir/err")"
rm "$dir/r/summary.json"
make --out "$dir/r" --resume --set train.steps=10
grep -q 'no step remains; only the evaluation and summary.json are missing' "$dir/err" && cmp "$dir/metrics" "$dir/r/metrics.jsonl" && [ -s "$dir/r/summary.json" ] || say "no summary: $(cat "$dir/err")"

# a chosen checkpoint: later ones and later lines are set aside, and the run goes on from there, several times
many=(--set checkpoint.every=2 --set checkpoint.keep=0)
make --out "$dir/s" "${many[@]}"
before=$(state "$dir/s")
expect 4 "$dir/s: no checkpoint of step 3; the run has 2, 4, 6, 8" "${run[@]}" --out "$dir/s" --resume=step:3
for word in step: step:0 step:-1 step:x step:4x 'step: 4' steps:4 4 Auto; do
    expect 2 "--resume=$word: unknown; give --resume, --resume=auto or --resume=step:N with N from 1" "${run[@]}" --out "$dir/s" "--resume=$word"
done
expect 5 'offload' "${run[@]}" --out "$dir/s" --resume=step:4 --set 'memory.offload={"optimizer":"file","path":"/proc/none"}'
expect 2 'optimizer.lr (was 0.004, is 3) differs from the checkpoint' "${run[@]}" --out "$dir/s" --resume=step:4 --set optimizer.lr=3
expect 2 'model.n_layer (was 1, is 2), optimizer.lr (was 0.004, is 3) differ from the checkpoint' "${run[@]}" --out "$dir/s" --resume=step:4 --set optimizer.lr=3 --set model.n_layer=2
[ "$(state "$dir/s")" = "$before" ] || say "a resume that failed changed files: $(state "$dir/s" | diff - <(echo "$before"))"
make --out "$dir/s" "${many[@]}" --resume=step:4 --until 5
grep -qx "kumi: $dir/s: 2 checkpoints of later steps moved to $dir/s/checkpoints.cut" "$dir/err" || say "set aside: $(cat "$dir/err")"
[ "$(steps "$dir/s/checkpoints"), $(steps "$dir/s/checkpoints.cut")" = '2 4 5, 6 8' ] || say "$(ls "$dir/s/checkpoints" "$dir/s/checkpoints.cut")"
[ "$(lines "$dir/s/metrics.jsonl"), $(lines "$dir/s/metrics.cut.jsonl")" = '1 2 3 4 5 5, 4 5 6 7 8 8' ] || say "lines: $(lines "$dir/s/metrics.jsonl"), $(lines "$dir/s/metrics.cut.jsonl")"
make --out "$dir/s" "${many[@]}" --resume=step:2 -n 2
[ "$(grep digest "$dir/out")" = "$digest" ] || say "a run resumed at step 2 ends elsewhere"
[ "$(steps "$dir/s/checkpoints"), $(steps "$dir/s/checkpoints.cut")" = '2 4 6 8, 4 5 6 8' ] || say "$(ls "$dir/s/checkpoints" "$dir/s/checkpoints.cut")"
[ "$(lines "$dir/s/metrics.cut.jsonl")" = '4 5 6 7 8 8 2 3 4 5 5' ] || say "lines cut: $(lines "$dir/s/metrics.cut.jsonl")"
[ "$("$kumi" ckpt list "$dir/s/checkpoints.cut" --json | python3 -c 'import json, sys; print([(e["step"], e["usable"]) for e in json.load(sys.stdin)])' 2>&1)" = "[(8, True), (6, True), (5, True), (4, True)]" ] || "$kumi" ckpt list "$dir/s/checkpoints.cut" --json
printf x >>"$dir/s/checkpoints/step-00000004/manifest.json"
expect 4 'resume: step 4: checkpoint: damaged' "${run[@]}" --out "$dir/s" --resume=step:4

# the checkpoint before a damaged one is compared, and gives its values: those of the damaged one count no more
damage() { # FILE: flips a bit in the middle
    python3 -c 'import sys; b = bytearray(open(sys.argv[1], "rb").read()); b[len(b) // 2] ^= 4; open(sys.argv[1], "wb").write(b)' "$1"
}
make --out "$dir/d" --until 4
make --out "$dir/d" --resume --allow-change --set optimizer.lr=0.5 --set schedule.decay_steps=16 --until 6
cp -a "$dir/d" "$dir/d2"
damage "$dir/d/checkpoints/step-00000006/model/model.safetensors"
before=$(state "$dir/d")
for ranks in 1 2; do
    expect 2 'step-00000004: optimizer.lr (was 0.004, is 0.5), schedule.decay_steps (was 8, is 16) differ from the checkpoint' \
        "${run[@]}" --out "$dir/d" --resume --set optimizer.lr=0.5 --set schedule.decay_steps=16 -n $ranks
done
expect 2 'step-00000006: optimizer.lr (was 0.5, is 0.004) differs from the checkpoint' "${run[@]}" --out "$dir/d" --resume
[ "$(state "$dir/d")" = "$before" ] || say "a resume past damage that failed changed files: $(state "$dir/d" | diff - <(echo "$before"))"
make --out "$dir/d" --resume --allow-change -n 2 # the damaged one differs, the one before does not
grep -q 'taking the previous checkpoint' "$dir/err" && grep -q 'resumed .*step-00000004 at step 4' "$dir/err" || say "past damage: $(cat "$dir/err")"
[ "$(grep digest "$dir/out")" = "$digest" ] || say "a run resumed past damage ends elsewhere"
damage "$dir/d2/checkpoints/step-00000006/optimizer/optimizer.safetensors"
make --out "$dir/d2" --resume --set optimizer.lr=0.5 --allow-change
grep -q 'changed since the checkpoint: optimizer.lr (was 0.004, is 0.5);' "$dir/err" || say "a change past damage is not said: $(cat "$dir/err")"

# parallel.order free: any rank count that divides the batch goes on, with a micro_batch of its own where the checkpoint's does not divide it
free=(--set parallel.order=free --set train.virtual_shards=null --set train.global_batch=12)
micro() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["numerics"]["train.micro_batch"])' "$dir/f/checkpoints/step-0000000$1/manifest.json"; }
make --out "$dir/f" "${free[@]}" -n 2 --until 2 --set checkpoint.keep=0
make --out "$dir/f" "${free[@]}" -n 3 --resume --until 4 --set checkpoint.keep=0
make --out "$dir/f" "${free[@]}" -n 1 --resume --until 6 --set checkpoint.keep=0
[ "$(micro 2) $(micro 4) $(micro 6)" = '6 4 4' ] || say "free: micro-batches of $(micro 2), $(micro 4), $(micro 6)"
expect 2 'train.global_batch: 12 is less than virtual_shards x micro_batch = 16' "${run[@]}" --out "$dir/f" "${free[@]}" --set train.micro_batch=8 -n 2 --resume
expect 2 'train.global_batch: 12 is no multiple of virtual_shards = 5; nearest: 10, 15' "${run[@]}" --out "$dir/f" "${free[@]}" -n 5 --resume
expect 2 'train.micro_batch (was 4, is 3) differs from the checkpoint' "${run[@]}" --out "$dir/f" "${free[@]}" --set train.micro_batch=3 -n 2 --resume

# three damaged newer checkpoints push out no good one
make --out "$dir/k" "${many[@]}" --set train.steps=12
for step in 08 10 12; do printf x >>"$dir/k/checkpoints/step-000000$step/manifest.json"; done
mv "$dir/k/checkpoints" "$dir/k/all"
mkdir "$dir/k/checkpoints"
for step in 02 04 06; do mv "$dir/k/all/step-000000$step" "$dir/k/checkpoints"; done
make --out "$dir/k" --resume --until 7 --set train.steps=12 --set checkpoint.keep=3
[ "$(steps "$dir/k/checkpoints")" = '4 6 7' ] || say "keep: $(steps "$dir/k/checkpoints")"
mv "$dir/k/all"/step-0000000[28] "$dir/k/all"/step-0000001? "$dir/k/checkpoints" 2>/dev/null
make --out "$dir/k" --resume --until 9 --set train.steps=12 --set checkpoint.keep=3
[ "$(steps "$dir/k/checkpoints"), $(steps "$dir/k/checkpoints.cut")" = '6 7 9, 8 10 12' ] || say "keep: $(steps "$dir/k/checkpoints"), $(steps "$dir/k/checkpoints.cut")"

# a stop during an evaluation: the checkpoint of its step is there, and a resume makes up for the evaluation
begin() { # DIR STEP option..: a run in the background, which has done STEP steps
    local out=$1 step=$2
    shift 2
    "$kumi" "${run[@]}" --out "$out" "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    for _ in {1..1000}; do
        grep -qs "^{\"step\":$step," "$out/metrics.jsonl" && return
        sleep 0.01
    done
    say "$*: no step $step: $(cat "$dir/err")"
}
long=(--set data.train=data/tinyshakespeare.txt --set data.val_fraction=0.5 --set train.eval_tokens=1000000 --set train.eval_every=1 --set checkpoint.every=1)
begin "$dir/e" 1 "${long[@]}"
kill -TERM $pid
wait $pid
is=$?
[ $is = 10 ] && grep -qxF "kumi: stopped: signal 15: step 1; the state is in $dir/e/checkpoints/step-00000001" "$dir/err" || say "stopped in an evaluation: exit $is: $(cat "$dir/err")"
[ "$(lines "$dir/e/metrics.jsonl")" = 1 ] || say "an evaluation that was stopped has a line: $(cat "$dir/e/metrics.jsonl")"
make --out "$dir/e" "${long[@]}" --resume --until 2
[ "$(lines "$dir/e/metrics.jsonl")" = '1 1 2 2' ] || say "the evaluation after a stop: $(lines "$dir/e/metrics.jsonl")"
# a resume that fails in its first step changes nothing, though it made up for an evaluation
sed -i /val_loss/d "$dir/big/metrics.jsonl"
before=$(state "$dir/big")
expect 9 'the last checkpoint is at step 1' "${run[@]}" --out "$dir/big" --resume --set train.eval_every=1 --set optimizer.lr=1e30 --set schedule.warmup_steps=0
[ "$(state "$dir/big")" = "$before" ] || say "a resume that failed in its first step changed $(state "$dir/big" | diff - <(echo "$before"))"
# the summary of steps that are repeated goes when their lines do
begin "$dir/s" 9 --resume=step:2 --set train.steps=100000
[ -e "$dir/s/summary.json" ] && say "a repeated step has the summary of an earlier run"
kill -KILL $pid
wait $pid 2>/dev/null
(cd "$dir" && expect 2 'train: --resume needs --out, the directory of the run' "${run[@]}" --resume=auto) && [ ! -e "$dir/runs" ] || say "a resume without --out"

# runs that start in the same second without --out: a directory each
mkdir "$dir/here"
pids=()
for i in 1 2 3 4 5 6; do
    (cd "$dir/here" && exec "$kumi" train "$source/configs/shakespeare-fast.json" "${run[@]:2}" --until 1 --trial >"$dir/out.$i" 2>&1) &
    pids+=($!)
done
for i in 1 2 3 4 5 6; do wait "${pids[i - 1]}" || say "run $i of six at once: $(cat "$dir/out.$i")"; done
[ "$(ls "$dir/here/runs" | grep -cE '^shakespeare-fast-[0-9]{8}-[0-9]{6}(-[2-6])?$')" = 6 ] || say "six runs at once: $(ls "$dir/here/runs")"
exit $failed
