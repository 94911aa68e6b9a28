#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# State divided among hosts, which this machine pretends to be: ZeRO 1, 2, 3 and hybrid groups over hosts have one digest with one rank, also where
# the ranks of a host share its parameters; a run goes on in any other layout; pretrained weights; a write that fails on one host; replicas that differ.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=2 --set model.n_embd=96
    --set train.threads=1 --set train.virtual_shards=8 --set train.micro_batch=1 --set train.global_batch=16 --set train.steps=3
    --set precision.compute=f32 --set train.eval_every=0 --set train.eval_tokens=128 --set data.seq_len=32 --set parallel.persist_below=0
    --set parallel.host_state=private)
# where HOSTS: HOSTS as a:2,b:2, or 4 for ranks of one host
where() { [[ $1 == *:* ]] && echo "-H $1 --rsh none" || echo "-n $1"; }
# train NAME HOSTS more..
train() {
    local name=$1 hosts=$2
    shift 2
    # shellcheck disable=SC2046
    timeout 300 "$kumi" train "${config[@]}" $(where "$hosts") --out "$dir/$name" "$@" >"$dir/log" 2>&1 || say "$name, $hosts: $(cat "$dir/log")"
    "$kumi" ckpt digest "$dir/$name" 2>>"$dir/log" | tail -1 >"$dir/$name.digest"
    grep -q "$(cat "$dir/$name.digest")" "$dir/log" || say "$name, $hosts: no digest, or another one: $(cat "$dir/log")"
}
same() { # name names..
    local first=$1
    shift
    for name in "$@"; do cmp -s "$dir/$first.digest" "$dir/$name.digest" || say "$first and $name: digests differ"; done
}
# the files of a checkpoint are those of one rank
same_files() {
    for file in model/model.safetensors optimizer/optimizer.safetensors model/model.safetensors.xxh3 optimizer/optimizer.safetensors.xxh3; do
        cmp "$dir/one/checkpoints/step-00000003/$file" "$dir/$1/checkpoints/step-00000003/$file" || say "$1: $file differs"
    done
}

train one 1
train full a:2,b:2 --set parallel.strategy=FULL_SHARD --set checkpoint.async=true --set checkpoint.every=1
train grad a:1,b:3 --set parallel.strategy=SHARD_GRAD_OP
train first a:1,b:1,c:1,d:1 --set parallel.zero=1 --set checkpoint.async=false
train hybrid a:2,b:2,c:2,d:2 --set parallel.strategy=HYBRID_SHARD --set parallel.shard=4 --set checkpoint.async=true --set train.verify_every=1
train offloaded a:2,b:2 --set parallel.zero=3 --set "memory.offload={\"optimizer\":\"file\",\"path\":\"$dir/offload\"}"
same one full grad first hybrid offloaded
for name in full grad first hybrid offloaded; do same_files "$name"; done

# stages 1 and 2 where the ranks of each host share one copy of the parameters
shared=(--set parallel.host_state=shared)
train both a:2,b:2 --set parallel.zero=1 "${shared[@]}" --set checkpoint.async=true --set checkpoint.every=1 --set train.verify_every=1
train both-four a:2,b:2,c:2,d:2 --set parallel.zero=2 "${shared[@]}" --set parallel.bucket_mb=0.01 --set parallel.overlap=false
train both-offloaded a:4,b:4 --set parallel.zero=2 "${shared[@]}" --set memory.offload.optimizer=host
train both-full a:2,b:2 --set parallel.strategy=FULL_SHARD "${shared[@]}" --set checkpoint.async=true --set checkpoint.every=1 --set parallel.prefetch=2
train both-gathered a:4,b:4 --set parallel.zero=3 "${shared[@]}" --set parallel.reshard_after_forward=false --set memory.offload.params=host
train both-hybrid a:2,b:2,c:2,d:2 --set parallel.strategy=HYBRID_SHARD --set parallel.shard=4 "${shared[@]}" --set train.verify_every=1
train both-groups a:2,b:2,c:2,d:2 --set parallel.zero=1 --set parallel.replicate=2 "${shared[@]}" --set parallel.persist_below=10000
train both-whole a:4,b:4 --set parallel.zero=3 --set parallel.shard=2 "${shared[@]}"
both=(both both-four both-offloaded both-full both-gathered both-hybrid both-groups both-whole)
same one "${both[@]}"
for name in "${both[@]}"; do same_files "$name"; done
six=(--set train.virtual_shards=6 --set train.global_batch=12 --set train.ema=0.9 --set precision.compute=bf16)
train six 1 "${six[@]}"
train six-hosts a:2,b:2,c:2 "${six[@]}" "${shared[@]}" --set parallel.zero=1 --set train.verify_every=1
train six-odd a:3,b:3 "${six[@]}" "${shared[@]}" --set parallel.strategy=SHARD_GRAD_OP --set parallel.grad_sync=step
same six six-hosts six-odd
whole=(--set optimizer.type=adafactor) # its factors are whole on each host
train factored 1 "${whole[@]}"
train factored-hosts a:2,b:2 "${whole[@]}" "${shared[@]}" --set parallel.zero=1 --set train.verify_every=1
same factored factored-hosts
for name in both both-four both-full both-gathered both-hybrid both-groups six-hosts; do # bytes stored and sent: those planned
    python3 - "$dir/$name/summary.json" <<'EOF' || say "$name: bytes"
import json, sys
step = json.load(open(sys.argv[1]))["exchanged_a_step"]
assert step["planned_bytes"] == step["moved_bytes"] > 0 and step["planned_far_bytes"] == step["far_bytes"] > 0, step
EOF
done

# kumi plan: what checkpoints need of other hosts is in the memory of the run
planned() { # name HOSTS inbox: its bytes are "some" or those of a "message" ..
    local name=$1 hosts=$2 inbox=$3
    shift 3
    "$kumi" plan "${config[@]}" -H "$hosts" "$@" --json >"$dir/plan.json" 2>"$dir/log" || say "plan $name: $(cat "$dir/log")"
    python3 - "$dir/plan.json" "$dir/$name/summary.json" "$inbox" <<'EOF' || say "plan $name: not what the run counted"
import json, sys
plan, run = (json.load(open(p)) for p in sys.argv[1:3])
inbox, message = plan["inbox_bytes"], 1 << 20
assert inbox > message if sys.argv[3] == "some" else inbox == message, inbox
assert plan["host_bytes"] == run["memory_planned_bytes"], (plan["host_bytes"], run["memory_planned_bytes"])
EOF
}
planned full a:2,b:2 some --set parallel.strategy=FULL_SHARD --set checkpoint.async=true
planned first a:1,b:1,c:1,d:1 some --set parallel.zero=1 --set checkpoint.async=false
planned hybrid a:2,b:2,c:2,d:2 some --set parallel.strategy=HYBRID_SHARD --set parallel.shard=4 --set checkpoint.async=true --set train.verify_every=1
planned both-hybrid a:2,b:2,c:2,d:2 some --set parallel.strategy=HYBRID_SHARD --set parallel.shard=4 "${shared[@]}" --set train.verify_every=1
planned both a:2,b:2 some --set parallel.zero=1 "${shared[@]}" --set checkpoint.async=true
"$kumi" plan "${config[@]}" -H a:2,b:2 "${shared[@]}" --set parallel.zero=2 2>&1 | grep -q '^zero 2: 2 hosts x 2 ranks; the ranks of a host share' || say "plan: both"
"$kumi" plan "${config[@]}" -H a:2,b:2 --set parallel.zero=3 --set parallel.shard=2 2>&1 | grep -qE '^bytes of other hosts for a checkpoint, .* 1048576$' || say "plan: no bytes of other hosts"
"$kumi" plan "${config[@]}" -n 4 --json 2>&1 | grep -q inbox_bytes && say "plan: one host has no other"
narrow=(--set precision.compute=bf16 --set precision.reduce=bf16 --set parallel.grad_sync=micro)
train narrow 4 "${narrow[@]}"
train narrow-hosts a:2,b:2 "${narrow[@]}" --set parallel.zero=3
train narrow-both a:2,b:2 "${narrow[@]}" --set parallel.zero=2 "${shared[@]}"
train narrow-full a:2,b:2 "${narrow[@]}" --set parallel.zero=3 "${shared[@]}" --set parallel.wrap=h.0
train narrow-hybrid a:1,b:1,c:1,d:1 "${narrow[@]}" --set parallel.zero=2 --set parallel.shard=2 "${shared[@]}"
same narrow narrow-hosts narrow-both narrow-full narrow-hybrid

# a run goes on in any layout
train moved 1 --until 1
train moved a:2,b:2 --resume=auto --until 2 --set parallel.zero=3
train moved a:1,b:3 --resume=auto --set parallel.zero=2
train back a:4,b:4 --until 1 --set parallel.zero=3
train back 1 --resume=auto --until 2
train back a:1,b:1 --resume=auto --set parallel.zero=1
train there a:2,b:2 --until 1 "${shared[@]}" --set parallel.zero=2
train there 1 --resume=auto --until 2
train there a:4,b:4 --resume=auto "${shared[@]}" --set parallel.zero=3
train again a:4,b:4 --until 1 "${shared[@]}" --set parallel.zero=1
train again a:1,b:3 --resume=auto --until 2 --set parallel.zero=3
train again a:2,b:2 --resume=auto "${shared[@]}" --set parallel.zero=0
same one moved back there again

# pretrained weights
weights=(--set "model={\"path\":\"$dir/one/checkpoints/step-00000003/model\"}")
tuned() { # name hosts more..
    local name=$1 hosts=$2
    shift 2
    train "$name" "$hosts" --until 1 "${weights[@]}" "$@"
}
old=("${config[@]}") config=()
for word in "${old[@]}"; do
    if [[ $word == model.* ]]; then unset 'config[-1]'; else config+=("$word"); fi
done
tuned tuned 1
tuned tuned-hosts a:2,b:2 --set parallel.zero=3
same tuned tuned-hosts
config=("${old[@]}")

# with FAULT on rank RANK: exit code and words of a run of a:2,b:2
fault() { # FAULT RANK CODE WORDS more..
    local fault=$1 rank=$2 code=$3 words=$4 is
    shift 4
    # shellcheck disable=SC2016
    timeout 300 "$kumi" run -H a:2,b:2 --rsh none -- sh -c '[ $RANK != '"$rank"' ] || export KUMI_FAULT='"$fault"'; exec "$@"' sh \
        "$kumi" train "${config[@]}" --out "$dir/fault" "$@" >"$dir/log" 2>&1
    is=$?
    [ $is = "$code" ] && grep -qE -e "$words" "$dir/log" || say "$fault, rank $rank: exit $is: $(cat "$dir/log")"
}
fault flip:5 3 9 'kumi: error: replicas differ: .*: rank 3 differs from rank 0' --set train.verify_every=1 --set parallel.zero=1
rm -rf "$dir/fault"
fault flip:5 3 9 'kumi: error: replicas differ: .*: rank 3 differs from rank 1' --set train.verify_every=1 --set parallel.zero=3 \
    --set parallel.shard=2
rm -rf "$dir/fault"
fault flip:5 3 9 'kumi: error: replicas differ: .*: rank 3 differs from rank 1' --set train.verify_every=1 --set parallel.zero=1 "${shared[@]}"
rm -rf "$dir/fault"
config+=(--set model.n_embd=384) # every rank writes chunks
train fault a:2,b:2 --until 1 --set parallel.zero=3
for async in true false; do
    rm -rf "$dir/before" && cp -r "$dir/fault" "$dir/before"
    fault write:1 3 5 'checkpoint: .*No space left' --resume=auto --set parallel.zero=3 --set "checkpoint.async=$async"
    [ "$(ls -A "$dir/fault/checkpoints")" = step-00000001 ] || say "$async: $(ls -A "$dir/fault/checkpoints")"
    "$kumi" ckpt verify "$dir/fault" >>"$dir/log" 2>&1 || say "$async: the checkpoint before it is damaged: $(cat "$dir/log")"
    rm -rf "$dir/fault" && mv "$dir/before" "$dir/fault"
done
train fault 1 --resume=auto
train whole 1
same whole fault
exit $failed
