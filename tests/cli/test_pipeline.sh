#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a pipeline leaves alone: losses of training and evaluation, the profile, asynchronous checkpoints, kumi eval, sample and check are those of one
# process. tests/cli/test_model_parallel.sh has the digests of all layouts.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=4 --set model.n_embd=48 --set model.n_head=4
    --set train.threads=1 --set train.virtual_shards=2 --set train.micro_batch=1 --set train.global_batch=8 --set train.steps=6 --set train.log_every=1
    --set checkpoint.keep=9 --set train.eval_tokens=256 --set train.eval_every=2 --set data.seq_len=32 --set train.ema=0.9)
pipe=(-n 4 --set parallel.pp=2 --set parallel.zero=3 --set parallel.pp_schedule=zb-h1)
train() { # name options..
    local name=$1
    shift
    "$kumi" train "${config[@]}" --out "$dir/$name" "$@" >"$dir/$name.txt" 2>"$dir/$name.log" || say "$name: $(cat "$dir/$name.log")"
}
train one -n 1
train piped "${pipe[@]}"
train profiled "${pipe[@]}" --profile=2-4 --set train.verify_every=2
train async "${pipe[@]}" --set checkpoint.async=true --set checkpoint.every=1
train hosts -H a:2,b:2 --rsh none "${pipe[@]:2}" --set checkpoint.async=true --set checkpoint.every=2
train resumed "${pipe[@]}" --set checkpoint.async=true --until 3
train resumed -n 2 --resume

# every loss of training and of evaluation, and the state
numbers() { python3 -c '
import json, sys
for line in open(sys.argv[1]):
    x = json.loads(line)
    if "loss" in x or x["step"] % 2 == 0: # a run that stops evaluates there too
        print(x["step"], x.get("loss"), x.get("val_loss"), x.get("grad_norm"), x.get("tokens"))' "$dir/$1/metrics.jsonl"; }
for run in piped profiled async hosts resumed; do
    [ "$(numbers $run)" = "$(numbers one)" ] || say "$run: other losses: $(diff <(numbers $run) <(numbers one) | head -3)"
    [ "$(grep digest "$dir/$run.txt")" = "$(grep digest "$dir/one.txt")" ] || say "$run: another digest"
done
[ "$(numbers one | wc -l)" -ge 6 ] || say "no losses: $(numbers one)"
for step in 2 4; do # of states that later steps overwrite while a thread writes them
    "$kumi" train "${config[@]}" -n 1 --out "$dir/at$step" --until $step >/dev/null 2>"$dir/log" || say "until $step: $(cat "$dir/log")"
    for run in async hosts; do
        [ "$("$kumi" ckpt digest "$dir/$run/checkpoints/step-0000000$step")" = "$("$kumi" ckpt digest "$dir/at$step")" ] || say "$run: the checkpoint of step $step differs"
    done
done

# the profile has every rank and what pipelines alone have
grep -qx 'steps 2 to 4, 4 ranks; times are means over steps and ranks' "$dir/profiled.txt" || say "no table: $(cat "$dir/profiled.txt")"
for row in 'start send' 'start recv' 'start all_gather' linear_dw; do
    grep -q "^$row " "$dir/profiled/profile.txt" || say "profile: no row $row: $(cat "$dir/profiled/profile.txt")"
done
python3 - "$dir/profiled" <<'P' || failed=1
import json, sys
events = json.load(open(sys.argv[1] + "/profile.trace.json"))["traceEvents"]
assert {e["pid"] for e in events} == {0, 1, 2, 3}
P

# evaluation and sampling of a pipeline's checkpoint, on any number of ranks, averages too
for how in '' --ema; do
    want=$("$kumi" eval "$dir/one" --json $how 2>"$dir/log") || say "eval: $(cat "$dir/log")"
    for n in 1 3; do
        got=$("$kumi" eval "$dir/piped" -n $n --json $how 2>"$dir/log") || say "eval -n $n: $(cat "$dir/log")"
        python3 -c 'import json, sys
a, b = (json.loads(x) for x in sys.argv[1:])
assert a["val_loss"] == b["val_loss"], (a, b)' "$want" "$got" || say "eval -n $n $how"
    done
done
sample() { "$kumi" sample "$dir/$1" --prompt ab --tokens 12 --seed 3 2>"$dir/log" || say "sample $1: $(cat "$dir/log")"; }
[ "$(sample piped)" = "$(sample one)" ] || say "samples differ"
"$kumi" check "${config[@]}" "${pipe[@]}" >"$dir/log" 2>&1 || say "check: $(cat "$dir/log")"
exit $failed
