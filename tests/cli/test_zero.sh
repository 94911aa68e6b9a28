#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sharding from the command line: one digest over layouts and for each grad_sync, the bytes that were moved, weights in 16 bits beside each
# checkpoint, and what is refused.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=2 --set model.n_embd=96
    --set train.threads=1 --set train.virtual_shards=4 --set train.micro_batch=1 --set train.global_batch=12 --set train.steps=3
    --set train.eval_tokens=128 --set data.seq_len=32 --set parallel.persist_below=0)
train() { # name n more..
    local name=$1 n=$2
    shift 2
    "$kumi" train "${config[@]}" -n "$n" --out "$dir/$name" "$@" >"$dir/log" 2>&1 || say "$name: $(cat "$dir/log")"
    "$kumi" ckpt digest "$dir/$name" | tail -1 >"$dir/$name.digest"
}
same() { # name name
    cmp -s "$dir/$1.digest" "$dir/$2.digest" || say "$1 and $2: digests differ"
}
own=(--set parallel.share_host_state=false)
micro=(--set parallel.grad_sync=micro)
train step 1
train micro 1 "${micro[@]}"
train shared 4 "${micro[@]}"
train stage0 2 "${micro[@]}" "${own[@]}" --set parallel.bucket_mb=0.01
train stage2 4 "${micro[@]}" "${own[@]}" --set parallel.zero=2 --set parallel.replicate=2
train stage3 4 "${micro[@]}" "${own[@]}" --set parallel.zero=3 --set parallel.reshard_after_forward=2 --set parallel.allgather_bucket_mb=0.01 \
    --set parallel.gather_16bit_on_save=true --set checkpoint.every=1 --set checkpoint.async=true
KUMI_LOG=train:info train common 4 "${micro[@]}" --set parallel.zero=3 --set parallel.shard=2
[ "$(grep -c 'train info: parallel.zero 3 saves nothing on one host: its 4 ranks share' "$dir/log")" = 1 ] || say "shared state: $(cat "$dir/log")"
KUMI_LOG=train:info train private 4 "${micro[@]}" --set parallel.zero=3 --set parallel.shard=2 --set parallel.host_state=private
grep -q 'saves nothing' "$dir/log" && say "private state: $(cat "$dir/log")"
for run in shared stage0 stage2 stage3 common private; do same micro $run; done
cmp -s "$dir/step.digest" "$dir/micro.digest" && say "grad_sync: step and micro have one digest"

# weights in 16 bits are those of the newest checkpoint, as `kumi ckpt export` makes them
"$kumi" ckpt export "$dir/stage3" --to "$dir/export" --dtype bf16 >"$dir/log" 2>&1 || say "export: $(cat "$dir/log")"
for file in model.safetensors config.json; do
    cmp -s "$dir/export/$file" "$dir/stage3/weights/$file" || say "weights/$file is not what ckpt export makes"
done
[ -e "$dir/stage3/weights.new" ] && say "weights.new is left"
[ -e "$dir/stage2/weights" ] && say "weights without gather_16bit_on_save"

# what was moved is what was planned; one rank moves nothing and says nothing
python3 - "$dir" <<'P' || failed=1
import json, sys
for run in "shared", "stage0", "stage2", "stage3", "step":
    step = json.load(open(f"{sys.argv[1]}/{run}/summary.json")).get("exchanged_a_step")
    if (step is None) != (run == "step") or step and not 0 < step["planned_bytes"] == step["moved_bytes"]:
        sys.exit(f"{run}: {step}")
P

# a run that was killed after its last checkpoint writes them after the resume
rm -r "$dir/stage3/weights" "$dir/stage3/summary.json"
train stage3 4 "${micro[@]}" "${own[@]}" --set parallel.zero=3 --set parallel.gather_16bit_on_save=true --resume
cmp -s "$dir/export/model.safetensors" "$dir/stage3/weights/model.safetensors" || say "weights are missing after a resume with no step left"
same micro stage3

# the other order of sums is no continuation
"$kumi" train "${config[@]}" -n 2 --out "$dir/micro" --set train.steps=4 --resume >"$dir/log" 2>&1 && say "grad_sync changed, and was resumed"
grep -q 'parallel.grad_sync (was "micro", is "step")' "$dir/log" || say "resume: $(cat "$dir/log")"
"$kumi" train "${config[@]}" -n 2 --out "$dir/step" --set train.steps=4 --set parallel.zero=3 "${own[@]}" --resume >"$dir/log" 2>&1 ||
    say "resume at another stage: $(cat "$dir/log")"
refused() { # text more..
    local text=$1
    shift
    "$kumi" plan "${config[@]}" "${own[@]}" -n 4 "$@" >"$dir/log" 2>&1
    [ $? = 2 ] && grep -qF "$text" "$dir/log" || say "wanted: $text; got: $(cat "$dir/log")"
}
refused 'parallel.reshard_after_forward: 3; true, false, or a divisor of the 4 shards: 1, 2, 4' --set parallel.zero=3 \
    --set parallel.reshard_after_forward=3
refused 'parallel.reshard_after_forward: 0; ' --set parallel.zero=3 --set parallel.reshard_after_forward=0
refused 'parallel.reshard_after_forward: "half"; ' --set parallel.zero=3 --set parallel.reshard_after_forward=half
refused 'parallel.grad_sync: "never"; one of: step micro' --set parallel.grad_sync=never
refused 'parallel.allgather_bucket_mb: 0; ' --set parallel.allgather_bucket_mb=0

# the plan says what each order costs, and the groups
plan() { "$kumi" plan "${config[@]}" "${own[@]}" -n 4 --memory "$@" >"$dir/log" 2>&1 || say "plan: $(cat "$dir/log")"; }
plan --set parallel.zero=2
grep -q 'gradients of 3 micro-batches accumulate before they are reduced: .* of full gradients in f32; parallel.grad_sync: micro reduces each' "$dir/log" ||
    say "plan of step: $(cat "$dir/log")"
plan --set parallel.zero=3 --set parallel.reshard_after_forward=2 "${micro[@]}"
grep -q 'each of 3 micro-batches is reduced (parallel.grad_sync: micro); a rank accumulates ' "$dir/log" || say "plan of micro: $(cat "$dir/log")"
grep -q 'all_gather  *shard/2 (2)' "$dir/log" || say "plan of groups: $(cat "$dir/log")"
exit $failed
