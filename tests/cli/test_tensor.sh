#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tensor parallelism from the command line: one digest for each tp, what is planned, whole tensors in checkpoints, and what is refused.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=2 --set model.n_embd=96 --set model.n_head=4
    --set train.threads=1 --set train.virtual_shards=2 --set train.micro_batch=1 --set train.global_batch=8 --set train.steps=3
    --set train.eval_tokens=128 --set data.seq_len=32)
tp=(--set parallel.tp=2)
train() { # name n more..
    local name=$1 n=$2
    shift 2
    "$kumi" train "${config[@]}" -n "$n" --out "$dir/$name" "$@" >"$dir/log" 2>&1 || say "$name: $(cat "$dir/log")"
    "$kumi" ckpt digest "$dir/$name" | tail -1 >"$dir/$name.digest"
}
same() { # name name
    cmp -s "$dir/$1.digest" "$dir/$2.digest" || say "$1 and $2: digests differ"
}
train two 2 "${tp[@]}" --set train.verify_every=1
train four 4 "${tp[@]}" --set train.verify_every=1 --set parallel.bucket_mb=0.01
train full 4 "${tp[@]}" --set 'memory.recompute="full"' --set checkpoint.every=1 --set checkpoint.async=true
train sharded 4 "${tp[@]}" --set parallel.zero=3 --set parallel.persist_below=0 --set train.verify_every=1
train half 2 "${tp[@]}" --until 2
"$kumi" train "${config[@]}" -n 4 "${tp[@]}" --out "$dir/half" --resume >"$dir/log" 2>&1 || say "resume: $(cat "$dir/log")"
"$kumi" ckpt digest "$dir/half" | tail -1 >"$dir/half.digest"
train offloaded 2 "${tp[@]}" --set memory.offload.optimizer=file --set memory.offload.path="$dir/offload"
# in three dimensions, and over hosts
train cube 8 "${tp[@]}" --set parallel.pp=2 --set parallel.zero=1 --set train.verify_every=1 --set train.eval_every=1
train stages 4 "${tp[@]}" --set parallel.pp=2 --set parallel.pp_schedule=zb-h1 --until 2
"$kumi" train "${config[@]}" -n 4 "${tp[@]}" --out "$dir/stages" --resume >"$dir/log" 2>&1 || say "resume without stages: $(cat "$dir/log")"
"$kumi" ckpt digest "$dir/stages" | tail -1 >"$dir/stages.digest"
"$kumi" train "${config[@]}" "${tp[@]}" -H a:2,b:2 --rsh none --set train.verify_every=1 --out "$dir/hosts" >"$dir/log" 2>&1 || say "hosts: $(cat "$dir/log")"
"$kumi" ckpt digest "$dir/hosts" | tail -1 >"$dir/hosts.digest"
"$kumi" train "${config[@]}" "${tp[@]}" -H a:1,b:3 --rsh none --set parallel.zero=1 --out "$dir/straddle" >"$dir/log" 2>&1 || say "straddle: $(cat "$dir/log")"
grep -q 'parallel.tp 2: the ranks that divide a layer are on several hosts' "$dir/log" || say "no warning: $(cat "$dir/log")"
"$kumi" ckpt digest "$dir/straddle" | tail -1 >"$dir/straddle.digest"
# a whole section: the plan of each module, and shards without a stage, which is 3
plan='"tp": 2, "sp": true, "loss_parallel": true,
    "plan": {"h.*.attn.c_attn": "col", "h.*.attn.c_proj": "row", "h.*.mlp.c_fc": "col", "h.*.mlp.c_proj": "row", "wte": "vocab", "ln_*": "seq"}'
train planned 2 --set parallel="{$plan}"
KUMI_LOG=train:info train section 8 --set parallel='{"pp": 2, "replicate": 1, "shard": 2, "pp_schedule": "1f1b", "virtual_stages": null, "host_state": "auto", '"$plan}" \
    --set parallel.persist_below=0 --set train.verify_every=1
grep -q "train info: parallel.zero 3: the default with parallel.shard, as FSDP's FULL_SHARD; with parallel.pp" "$dir/log" || say "section: $(cat "$dir/log")"
same planned section
for run in four full sharded half offloaded cube stages hosts straddle; do same two $run; done

# parallel.tp_exact: one digest for every tp, also through a resume, and in every layout of one tp
exact=(--set parallel.tp_exact=4)
train exact 1 "${exact[@]}"
train exact-four 4 "${exact[@]}" --set parallel.tp=4 --set train.verify_every=1
train exact-zero 4 "${exact[@]}" "${tp[@]}" --set parallel.zero=2 --set 'memory.recompute="full"'
train exact-stages 4 "${exact[@]}" "${tp[@]}" --set parallel.pp=2 --until 2
"$kumi" train "${config[@]}" -n 2 "${exact[@]}" --out "$dir/exact-stages" --resume >"$dir/log" 2>&1 || say "resume without tp: $(cat "$dir/log")"
"$kumi" ckpt digest "$dir/exact-stages" | tail -1 >"$dir/exact-stages.digest"
train exact-sequence 4 "${exact[@]}" --set parallel.tp=4 --set parallel.sp=true
for run in four zero stages sequence; do same exact exact-$run; done
train exact-lamb 1 "${exact[@]}" --set optimizer.type=lamb --set train.label_smoothing=0.1 --set precision.compute=f32 --set model.n_embd=100
train exact-lamb-two 2 "${exact[@]}" "${tp[@]}" --set optimizer.type=lamb --set train.label_smoothing=0.1 --set precision.compute=f32 --set model.n_embd=100
same exact-lamb exact-lamb-two
# slices that are no power of two, over hosts too, and a vocabulary of 256 that is padded to 384
twelve=(--set parallel.tp_exact=12 --set model.n_head=12 --set data.seq_len=24 --set train.label_smoothing=0.1)
train twelve 1 "${twelve[@]}"
train twelve-three 3 "${twelve[@]}" --set parallel.tp=3 --set parallel.sp=true --until 2
"$kumi" train "${config[@]}" "${twelve[@]}" -H a:2,b:4 --rsh none --set parallel.tp=6 --out "$dir/twelve-three" --resume >"$dir/log" 2>&1 || say "resume with tp 6: $(cat "$dir/log")"
"$kumi" ckpt digest "$dir/twelve-three" | tail -1 >"$dir/twelve-three.digest"
same twelve twelve-three

# precision.tp_reduce: half the bytes on axis tp, of activations
train narrow 2 "${tp[@]}" --set precision.tp_reduce=bf16
train narrow-four 4 "${tp[@]}" --set precision.tp_reduce=bf16 --set parallel.zero=1
same narrow narrow-four
cmp -s "$dir/two.digest" "$dir/narrow.digest" && say "tp_reduce: nothing was rounded"
bytes_of_tp() { # settings..
    "$kumi" plan "${config[@]}" -n 2 "${tp[@]}" "$@" 2>"$dir/log" | sed -n 's/^ *all_reduce *tp (2).* \([0-9.]* [KM]iB\)$/\1/p'
}
wide=$(bytes_of_tp --set parallel.loss_parallel=false) half=$(bytes_of_tp --set parallel.loss_parallel=false --set precision.tp_reduce=bf16)
python3 -c 'import sys; a, b = (x.split() for x in sys.argv[1:]); sys.exit(a[1] != b[1] or abs(float(a[0]) - 2 * float(b[0])) > 0.02)' "$wide" "$half" ||
    say "tp_reduce: $half of $wide"

# whatever divides it, a checkpoint has whole tensors: evaluation, sampling and export know no tp
"$kumi" eval "$dir/two" -n 1 >"$dir/one.txt" 2>"$dir/log" || say "eval: $(cat "$dir/log")"
"$kumi" eval "$dir/two" -n 2 >"$dir/two.txt" 2>"$dir/log" || say "eval -n 2: $(cat "$dir/log")"
cmp -s "$dir/one.txt" "$dir/two.txt" || say "eval: $(diff "$dir/one.txt" "$dir/two.txt")"
"$kumi" sample "$dir/two" --prompt a --tokens 4 >"$dir/log" 2>&1 || say "sample: $(cat "$dir/log")"
"$kumi" ckpt export "$dir/two" --to "$dir/export" >"$dir/log" 2>&1 || say "export: $(cat "$dir/log")"

# what was moved is what was planned, and the plan names the axis
python3 - "$dir" <<'P' || failed=1
import json, sys
for run in "two", "four", "sharded":
    step = json.load(open(f"{sys.argv[1]}/{run}/summary.json"))["exchanged_a_step"]
    if not 0 < step["planned_bytes"] == step["moved_bytes"]:
        sys.exit(f"{run}: {step}")
P
"$kumi" plan "${config[@]}" -n 4 "${tp[@]}" >"$dir/log" 2>&1 || say "plan: $(cat "$dir/log")"
grep -Eq 'all_reduce +.*\btp\b' "$dir/log" || say "plan does not show axis tp: $(cat "$dir/log")"

refused() { # text arguments..
    local text=$1
    shift
    "$kumi" train "${config[@]}" --out "$dir/bad" "$@" >"$dir/log" 2>&1
    [ $? = 2 ] || say "$*: not refused: $(cat "$dir/log")"
    grep -q "$text" "$dir/log" || say "$*: $(cat "$dir/log")"
}
refused 'must divide the number of ranks, 3; start 2 or 4' -n 3 "${tp[@]}"
refused 'does not divide dim h' -n 3 --set parallel.tp=3
refused 'slices of its own; use auto or private' -n 2 "${tp[@]}" --set parallel.host_state=shared
refused 'their own stages; use auto or private' -n 2 --set parallel.pp=2 --set parallel.host_state=shared
refused 'divided by a power of two: use 1 or 2$' -n 4 --set parallel.tp=4 --set parallel.tp_exact=2
refused 'divided by a power of two: use 1, 3, 6 or 12$' -n 2 "${tp[@]}" --set parallel.tp_exact=12
refused 'parallel.tp_exact: 8 does not divide dim h .* nearest: 4' -n 1 --set parallel.tp_exact=8
refused 'bits depend on parallel.tp' -n 2 "${tp[@]}" "${exact[@]}" --set precision.tp_reduce=bf16
refused 'precision.grads: "bf16"; rounds gradients of parts' -n 2 "${tp[@]}" "${exact[@]}" --set parallel.sp=true --set precision.grads=bf16
refused 'wpe.weight (add_rows) is a sum over 30 tokens' -n 2 "${tp[@]}" "${exact[@]}" --set parallel.sp=true --set data.seq_len=30
grouped=(--set 'model={"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 64}')
refused 'which has 2 key and value heads; nearest: 2 or 6' -n 4 --set parallel.tp=4 "${grouped[@]}"
refused 'which has 2 key and value heads; nearest: 2 or 6' -n 3 --set parallel.tp=3 "${grouped[@]}"
refused 'are not sums in slices of query heads; nearest: 2' -n 1 --set parallel.tp_exact=4 "${grouped[@]}"
refused 'v_proj.weight: col_gather over axis tp: model.layers.0.self_attn.v_proj has fewer key and value heads than ranks' -n 6 --set parallel.tp=6 --set 'parallel.plan={"v_proj": "col_gather"}' "${grouped[@]}"
# a vocabulary that the ranks do not divide gets more padding, which nothing shows
thirds=("${grouped[@]/\"num_key_value_heads\": 2/\"num_key_value_heads\": 3}")
three=(--set parallel.tp=3 --set parallel.loss_parallel=true)
train thirds 1 "${thirds[@]}" --until 2
resume_thirds() { # n settings..
    local n=$1
    shift
    "$kumi" train "${config[@]}" "${thirds[@]}" -n "$n" --out "$dir/thirds" --resume --allow-change "$@" >"$dir/log" 2>&1 || say "thirds on $n: $(cat "$dir/log")"
    grep -q 'are whole on every rank' "$dir/log" && say "thirds on $n: $(cat "$dir/log")"
}
resume_thirds 3 "${three[@]}" --set parallel.sp=true --set train.verify_every=1
"$kumi" ckpt export "$dir/thirds" --to "$dir/thirds.export" >"$dir/log" 2>&1 || say "export: $(cat "$dir/log")"
python3 - "$dir/thirds.export/model.safetensors" <<'P' || failed=1
import json, sys
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
shapes = {name: header[name]["shape"] for name in ("model.embed_tokens.weight", "lm_head.weight")}
if set(map(tuple, shapes.values())) != {(256, 48)}:
    sys.exit(f"thirds: {shapes}")
P
resume_thirds 1 --set train.steps=4
"$kumi" plan "${config[@]}" "${thirds[@]}" "${three[@]}" -n 3 --memory >"$dir/log" 2>&1 || say "plan: $(cat "$dir/log")"
grep -Eq ' 24576 +parameters +model.embed_tokens.weight' "$dir/log" || say "plan does not show 128 rows a rank: $(cat "$dir/log")"
"$kumi" check "${config[@]}" "${thirds[@]}" "${three[@]}" -n 3 >"$dir/log" 2>&1 || say "check: $(cat "$dir/log")"
# LAMB's ratios where the ranks divide every tensor that has one
train lamb 2 "${tp[@]}" "${grouped[@]}" --set optimizer.type=lamb
train lamb-zero 4 "${tp[@]}" "${grouped[@]}" --set optimizer.type=lamb --set parallel.zero=1
same lamb lamb-zero
refused 'optimizer.type' -n 1 "${exact[@]}" --set optimizer.type=adafactor
# Adafactor's means of rows and columns are of whole matrices, of which each rank has a slice
train adafactor 2 "${tp[@]}" --set optimizer.type=adafactor
train adafactor-zero 4 "${tp[@]}" --set optimizer.type=adafactor --set parallel.zero=1
train adafactor-stages 4 "${tp[@]}" --set optimizer.type=adafactor --set parallel.pp=2
for run in zero stages; do same adafactor adafactor-$run; done
"$kumi" check "${config[@]}" -n 4 "${tp[@]}" >"$dir/log" 2>&1 || say "check: $(cat "$dir/log")"

# another tp is another numerics class
"$kumi" train "${config[@]}" -n 2 --out "$dir/two" --set train.steps=4 --resume >"$dir/log" 2>&1 && say "tp changed, and was resumed"
grep -q 'parallel.tp' "$dir/log" || say "another tp: $(cat "$dir/log")"
"$kumi" train "${config[@]}" -n 1 --out "$dir/exact" --set train.steps=4 --resume >"$dir/log" 2>&1 && say "tp_exact changed, and was resumed"
grep -q 'parallel.tp_exact' "$dir/log" || say "another tp_exact: $(cat "$dir/log")"
exit $failed
