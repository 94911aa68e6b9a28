#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A DeepSpeed configuration: its table against a file (KUMI_UPDATE=1 writes it anew), the run against that of the same keys in
# kumi's own words, bit by bit, and what is refused.
. "$2/tests/cli/begin.sh"
config=configs/deepspeed/train.json golden=tests/golden/deepspeed.txt

# the table
"$kumi" train $config -n 2 --explain-deepspeed >"$dir/table" 2>"$dir/errors" || say "--explain-deepspeed: $(cat "$dir/errors")"
[ -n "${KUMI_UPDATE-}" ] && cp "$dir/table" $golden
diff "$dir/table" $golden || say "the table differs from $golden"
diff <(sed -n '/^configs.deepspeed.ds_config.json$/,/^batch: /p' docs/reference/deepspeed.md) $golden || say "docs/reference/deepspeed.md differs from $golden"
"$kumi" train $config -n 2 --explain-deepspeed --json >"$dir/json" || say 'no JSON'
python3 - "$dir/json" <<'PYTHON' || say 'the JSON does not say what the table says'
import json, sys
told = json.load(open(sys.argv[1]))
keys = {row["key"]: row for row in told["keys"]}
assert len(keys) > 180, len(keys)
assert all(row["verdict"] in ("applied", "no effect") for row in keys.values())
row = keys["optimizer.params.lr"]
assert (row["value"], row["source"], row["becomes"]) == (0.004, "file", {"optimizer.lr": 0.004}), row
assert keys["fp16.hysteresis"]["why"] == "fp16.enabled is false"
assert told["batch"] == {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "ranks": 2}
PYTHON
[ "$("$kumi" train $config --explain-deepspeed=all | wc -l)" -gt 180 ] || say '--explain-deepspeed=all lists too few'
# what only the rest of the configuration refuses ends it as it ends the training, after the table
for bad in 'train.virtual_shards=3' 'parallel.shard=3' 'model.n_embd=3'; do
    "$kumi" train $config -n 2 --set $bad --out "$dir/o" >/dev/null 2>"$dir/errors"
    wanted=$?
    "$kumi" train $config -n 2 --set $bad --explain-deepspeed >"$dir/table" 2>"$dir/explained"
    [ $? = $wanted ] && [ $wanted = 2 ] && cmp -s "$dir/errors" "$dir/explained" && grep -q '^optimizer.params.lr ' "$dir/table" ||
        say "--explain-deepspeed with $bad: $(cat "$dir/errors" "$dir/explained")"
done

# the world size of a batch is the number of data-parallel ranks, as in training
printf '{train_batch_size: 16, train_micro_batch_size_per_gpu: 8}' >"$dir/tensor.json"
got=$("$kumi" train $config --deepspeed "$dir/tensor.json" -n 4 --set parallel.tp=2 --explain-deepspeed 2>&1) || say "tp 2: $got"
printf '%s' "$got" | grep -q 'gradient_accumulation_steps 1 x 2 ranks$' || say "tp 2: $got"

# what is set and has no effect is not reported as applied
cat >"$dir/sharded.json" <<'JSON'
{train_batch_size: 8, zero_optimization: {stage: 3, allgather_bucket_size: 4e6, stage3_max_live_parameters: 1e6,
 offload_optimizer: {device: "cpu", pin_memory: true, ratio: 0.5}, reduce_bucket_size: 4e6}}
JSON
explain() { # host_state pattern..
    local host_state=$1 pattern
    shift
    "$kumi" train $config --deepspeed "$dir/sharded.json" --set parallel.host_state="$host_state" -n 2 --explain-deepspeed >"$dir/table" 2>"$dir/errors" ||
        say "sharded: $(cat "$dir/errors")"
    for pattern; do grep -qE "^zero_optimization\.$pattern" "$dir/table" || say "host_state $host_state: no $pattern in: $(cat "$dir/table")"; done
}
shared='parallel.host_state: shared'
explain shared "stage .* no effect: $shared" "allgather_bucket_size .* no effect: parallel.zero: without effect under $shared" \
    'stage3_max_live_parameters .* no effect: ' 'reduce_bucket_size .* applied' 'offload_optimizer.pin_memory .* no effect: it is for transfers to GPUs' \
    'offload_optimizer.device .* applied' 'offload_optimizer.ratio .* applied'
explain private 'stage .* applied' 'allgather_bucket_size .* applied' 'stage3_max_live_parameters .* applied'

# the same run in kumi's words
own='{"model":{"model_type":"gpt2","n_layer":1,"n_head":4,"n_embd":32,"n_positions":16,"vocab_size":256},"data":{"train":"data/tinyshakespeare.txt"},
 "train":{"steps":3,"virtual_shards":2,"eval_tokens":64,"seed":7}'
cat >"$dir/ds.json" <<'JSON'
{ // all of them decide bits
  train_batch_size: 8, train_micro_batch_size_per_gpu: 2, gradient_clipping: 0.5,
  optimizer: {type: "Adam", params: {lr: 2e-3, betas: [0.8, 0.99], eps: 1e-6, weight_decay: 0.2}},
  bf16: {enabled: true},
}
JSON
printf '%s,"deepspeed":"%s"}' "$own" "$dir/ds.json" >"$dir/theirs.json"
printf '%s}' "$own" >"$dir/bare.json"
printf '%s}' "$own" | sed 's/"seed":7/"seed":7,"global_batch":8,"micro_batch":2,"clip_norm":0.5/; s/}}$/},"precision":{"compute":"bf16"},"optimizer":{"type":"adamw","lr":2e-3,"betas":[0.8,0.99],"eps":1e-6,"weight_decay":0.2,"decay":"all"}}/' >"$dir/ours.json"
digest() { "$kumi" train "$@" --overwrite 2>"$dir/errors" | grep '^digest: ' || cat "$dir/errors"; }
ours=$(digest "$dir/ours.json" --out "$dir/ours")
[ -n "$ours" ] || say 'no digest'
for n in 1 2; do
    [ "$(digest "$dir/theirs.json" -n $n --out "$dir/theirs")" = "$ours" ] || say "-n $n: other bits than in kumi's words"
done
[ "$(digest "$dir/bare.json" --deepspeed "$dir/ds.json" --out "$dir/option")" = "$ours" ] || say '--deepspeed: other bits than the key'
"$kumi" train "$dir/theirs.json" -n 2 --out "$dir/theirs" --set train.steps=4 --resume >/dev/null 2>"$dir/errors" || say "resume: $(cat "$dir/errors")"
"$kumi" plan "$dir/bare.json" --deepspeed "$dir/ds.json" >/dev/null || say 'kumi plan --deepspeed'
"$kumi" graph "$dir/bare.json" --deepspeed "$dir/ds.json" --after precision | grep -q bf16 || say 'kumi graph --deepspeed'

# a peak that the schedule takes from the optimizer is scaled; one of its own is not, and the keys without effect are named
scaled() { # params of the scheduler: the last rate; messages in $dir/errors
    printf '{train_batch_size: 8, scheduler: {type: "WarmupLR", params: {warmup_num_steps: 2%s}}}' "$1" >"$dir/warm.json"
    "$kumi" train "$dir/bare.json" --deepspeed "$dir/warm.json" --out "$dir/warm" --overwrite --set train.steps=5 --set train.log_every=1 \
        --set optimizer.lr=0.002 --set 'optimizer.lr_scaling={"rule":"linear","base_batch":2}' >/dev/null 2>"$dir/errors" || say "WarmupLR$1: $(cat "$dir/errors")"
    python3 -c 'import json, sys; print([r["lr"] for r in map(json.loads, open(sys.argv[1])) if "lr" in r][-1])' "$dir/warm/metrics.jsonl"
}
for params in '' ', warmup_max_lr: "auto"'; do
    [ "$(scaled "$params")" = 0.008 ] && grep -q 'learning rate 0.008 = 0.002 x (8 / 2)$' "$dir/errors" || say "WarmupLR$params: $(scaled "$params"), $(cat "$dir/errors")"
done
[ "$(scaled ', warmup_max_lr: 0.001')" = 0.001 ] && ! grep -q 'learning rate' "$dir/errors" &&
    grep -qF 'no effect: optimizer.lr (schedule.warmup_max_lr: given), optimizer.lr_scaling (schedule.warmup_max_lr: given)' "$dir/errors" || say "a peak of its own: $(cat "$dir/errors")"

# the reports of all stages and layouts replace a layout that the file gives, by null too, as they replace that of CONFIG
plan() { # file's text, report, options..
    printf '%s' "$1" >"$dir/layout.json"
    "$kumi" plan "$dir/bare.json" --deepspeed "$dir/layout.json" -n 2 "$2" --json "${@:3}" 2>"$dir/errors" || say "$2 of $1: $(cat "$dir/errors")"
}
for report in --stages --layouts; do
    plan '{train_batch_size: 8}' $report >"$dir/free"
    plan '{train_batch_size: 8, zero_optimization: {stage: 2}}' $report >"$dir/staged"
    cmp -s "$dir/free" "$dir/staged" || say "$report: other rows with a stage in the file: $(diff "$dir/free" "$dir/staged")"
    plan '{train_batch_size: 8, zero_optimization: {stage: 3, mics_shard_size: 2}}' $report >"$dir/staged"
    grep -q 'contradicts\|parallel.shard' "$dir/staged" && say "$report: rows are refused for the file's shard: $(grep refused "$dir/staged")"
done
plan '{train_batch_size: 8, tensor_parallel: {autotp_size: 2}}' --layouts >"$dir/staged"
cmp -s "$dir/free" "$dir/staged" || say "--layouts: other rows with a tensor-parallel size in the file: $(diff "$dir/free" "$dir/staged")"
# what reduces memory is a list of further --set options, which may not contradict the file
plan '{train_batch_size: 8, train_micro_batch_size_per_gpu: 2}' --memory >"$dir/plan"
grep -q '"train.virtual_shards\|"memory.recompute' "$dir/plan" && ! grep -q '"train.micro_batch=1"' "$dir/plan" || say "--memory: $(grep -A9 to_hold_less "$dir/plan")"

expect() { # text command..
    local text=$1 got
    shift
    got=$("$kumi" "$@" 2>&1 >/dev/null)
    [ $? = 2 ] || say "kumi $*: not exit code 2: $got"
    printf '%s' "$got" | grep -qF -- "$text" || say "kumi $*: wanted $text, got $got"
    [ "$(printf '%s\n' "$got" | grep -c '^kumi: error:')" = 1 ] || say "kumi $*: not one error line: $got"
}
put() { printf '%s' "$1" >"$dir/bad.json"; }
bad=(train "$dir/bare.json" --deepspeed "$dir/bad.json" --out "$dir/o")
expect 'Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 8 != 2 * 1 * 3; world size seen: 3; nearest valid train_batch_size: 6 or 12' \
    train "$dir/bare.json" --deepspeed "$dir/ds.json" --set train.virtual_shards=3 -n 3 --out "$dir/o"
put '{train_batch_size: 8, optimizer: {type: "Muon"}}'
expect "config: $dir/bad.json:1:35: optimizer.type: \"Muon\"; it is not supported; use AdamW" "${bad[@]}"
put '{train_batch_size: 8, zero_optimization: {stagee: 1}}'
expect "config: $dir/bad.json:1:43: zero_optimization.stagee: unknown key; did you mean stage?" "${bad[@]}"
put '{train_batch_size: cpu}'
expect "json: $dir/bad.json:1:20: hjson's unquoted strings are not supported" "${bad[@]}"
put '{train_batch_size: 8, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}'
expect 'it contradicts optimizer.lr: 3' "${bad[@]}" --set optimizer.lr=3
expect "json: $dir/none.json: cannot be read" train "$dir/bare.json" --deepspeed "$dir/none.json"
# more ranks than one host can have: nothing is started
put '{train_batch_size: 4096, train_micro_batch_size_per_gpu: 2}'
got=$("$kumi" train "$dir/bare.json" --deepspeed "$dir/bad.json" --set train.virtual_shards=1024 -n 1024 --explain-deepspeed 2>&1) || say "1024 ranks: $got"
printf '%s' "$got" | grep -qF 'batch: train_batch_size 4096 = train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 2 x 1024 ranks' || say "1024 ranks: $got"
expect 'no DeepSpeed configuration in it; give --deepspeed FILE, or a key "deepspeed"' train "$dir/bare.json" --explain-deepspeed
expect 'kumi train: --explain-deepspeed=some: give --explain-deepspeed or --explain-deepspeed=all' train $config --explain-deepspeed=some
expect 'kumi train: --explain-deepspeed needs only the number of ranks; give -n' train $config -H a:2,b:2 --explain-deepspeed
expect 'kumi train: --json goes only with --explain-deepspeed' train $config --json
put '{train_batch_size: 8, train_micro_batch_size_per_gup: 1}'
got=$("$kumi" "${bad[@]}" --overwrite 2>&1 >/dev/null) || say "an unknown key at the top: $got"
printf '%s' "$got" | grep -qF "kumi: $dir/bad.json:1:23: train_micro_batch_size_per_gup: unknown key; did you mean train_micro_batch_size_per_gpu? DeepSpeed ignores it, too" ||
    say "no warning: $got"
for command in plan 'plan --limit 64GiB' 'plan --stages' 'plan --layouts' 'plan --mesh' 'plan --roofline' graph check; do
    # shellcheck disable=SC2086
    set -- $command
    got=$("$kumi" "$1" "$dir/bare.json" --deepspeed "$dir/bad.json" -n 2 "${@:2}" 2>&1 >/dev/null) || say "$command: $got"
    [ "$(printf '%s\n' "$got" | grep -c 'DeepSpeed ignores it, too')" = 1 ] || say "$command: not one warning: $got"
done
expect 'train_micro_batch_size_per_gup: unknown key; did you mean train_micro_batch_size_per_gpu?' "${bad[@]}" --overwrite --strict
exit $failed
