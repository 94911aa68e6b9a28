#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The host reaches the arenas through the device interface alone. Every run here has arenas that are inaccessible outside of kernels, collectives
# and declared accesses (KUMI_PROTECT_ARENAS); any other access ends it by a signal. Its result is that of the same run without protection.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
fail() { echo "$*" >&2; touch "$dir/failed"; }
run() { timeout 120 "$kumi" "$@" 2>"$dir/err" || fail "kumi $*: exit $?: $(tail -2 "$dir/err")"; }
protected() { KUMI_PROTECT_ARENAS=1 run "$@"; }
digest() { "$kumi" ckpt digest "$1"; }
same() { # what was compared, two results
    [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: '$2' unprotected, '$3' protected"
}
head -c 20000 data/tinyshakespeare.txt >"$dir/text"
printf '{"model":{"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":32,"n_positions":16,"vocab_size":256,"n_inner":64},
 "data":{"train":"%s"},"checkpoint":{"every":2,"keep":0},"optimizer":{"lr":0.003},
 "train":{"steps":4,"global_batch":8,"virtual_shards":2,"micro_batch":2,"eval_tokens":256,"eval_every":2,"log_every":1,"ema":0.9,"threads":2}}' \
    "$dir/text" >"$dir/text.json"

# training with evaluations; checkpoints written between steps and beside them; a resume. Bits do not depend on the layout, so each precision
# has one run without protection.
for precision in f32 bf16 f16; do
    run train "$dir/text.json" --set precision.compute=$precision --out "$dir/$precision" >/dev/null
done
row=0
while read -r precision args; do
    row=$((row + 1)) out=$dir/row-$row
    # shellcheck disable=SC2086
    set -- train "$dir/text.json" --set precision.compute="$precision" $args --out "$out"
    protected "$@" --until 2 >/dev/null
    protected "$@" --resume >/dev/null
    for step in 2 4; do
        same "$args, step $step" "$(digest "$dir/$precision/checkpoints/step-0000000$step")" "$(digest "$out/checkpoints/step-0000000$step")"
    done
    same "$args: evaluations" "$(grep -o '"val_loss":[0-9.e-]*' "$dir/$precision/metrics.jsonl")" "$(grep -o '"val_loss":[0-9.e-]*' "$out/metrics.jsonl")"
done <<R
f32 -n 1
f32 -n 1 --set checkpoint.async=true
f16 -n 1 --set memory.offload={"optimizer":"host"}
f32 -n 2 --set checkpoint.async=true --set checkpoint.staging_mb=8
f16 -n 2 --set parallel.transport=thread
f32 -n 2 --set parallel.share_host_state=false --set train.verify_every=1
bf16 -n 2 --set parallel.share_host_state=false --set parallel.zero=3 --set checkpoint.async=true --set train.verify_every=1
f32 -n 2 --set parallel.share_host_state=false --set parallel.zero=1 --set memory.offload={"optimizer":"file","path":"$dir"}
R

# the same state, read by other commands: evaluation, averages, sampling past the window, weights of another dtype
for n in 1 2; do
    set -- eval "$dir/f32" --data "$dir/text" --json -n $n
    same "eval -n $n" "$(run "$@")" "$(protected "$@")"
    set -- eval "$dir/f32" --ema --data "$dir/text" --json -n $n
    same "eval --ema -n $n" "$(run "$@")" "$(protected "$@")"
done
set -- sample "$dir/f32" --prompt To --tokens 24 --seed 3
same sample "$(run "$@")" "$(protected "$@")"
run ckpt export "$dir/f32" --to "$dir/half" --dtype bf16 >/dev/null
set -- train "$dir/text.json" --set model.path="$dir/half" --set train.steps=1
run "$@" --out "$dir/plain-half" >/dev/null
protected "$@" --out "$dir/half-run" >/dev/null
same 'weights in bf16' "$(digest "$dir/plain-half/checkpoints/step-00000001")" "$(digest "$dir/half-run/checkpoints/step-00000001")"

# a non-finite loss: the search runs the step again and looks at each result
for n in 1 2; do
    set -- train "$dir/text.json" -n $n --set optimizer.lr=1e30 --set schedule.warmup_steps=0
    timeout 60 "$kumi" "$@" --out "$dir/nan-$n" >/dev/null 2>"$dir/plain"
    KUMI_PROTECT_ARENAS=1 timeout 60 "$kumi" "$@" --out "$dir/nan-p-$n" >/dev/null 2>"$dir/err"
    [ $? = 9 ] || fail "non-finite, -n $n: exit $?: $(tail -2 "$dir/err")"
    same "non-finite, -n $n" "$(grep error: "$dir/plain" | sed "s/nan-$n//")" "$(grep error: "$dir/err" | sed "s/nan-p-$n//")"
done

# seq2seq: batch shapes, BLEU, greedy and beam search
for split in train val; do
    for i in $(seq 40); do
        echo "e$((i % 8)) e$((i * 3 % 8)) e$((i / 8))" >>"$dir/$split.en"
        echo "j$((i % 8)) j$((i * 3 % 8))" >>"$dir/$split.ja"
    done
done
printf '{"model":{"model_type":"transformer","d_model":32,"encoder_layers":1,"decoder_layers":1,"num_heads":4,"ffn_dim":40,"max_positions":32},
 "data":{"train":"%s/train.en","train_target":"%s/train.ja","val":"%s/val.en","val_target":"%s/val.ja","tokenizer":"word","target_tokenizer":"word",
  "batch_tokens":60,"shapes":3,"last_batch":"short","max_source_len":12,"max_target_len":31},
 "train":{"steps":8,"virtual_shards":2,"log_every":0,"threads":1},"optimizer":{"type":"adam","lr":0.01}}' "$dir" "$dir" "$dir" "$dir" >"$dir/pairs.json"
run train "$dir/pairs.json" --out "$dir/pairs" >/dev/null
protected train "$dir/pairs.json" --out "$dir/pairs-p" -n 2 >/dev/null
same pairs "$(digest "$dir/pairs/checkpoints/step-00000008")" "$(digest "$dir/pairs-p/checkpoints/step-00000008")"
for beam in 1 3; do
    same "translate, beam $beam" "$(run translate "$dir/pairs" --beam $beam <"$dir/val.en")" "$(protected translate "$dir/pairs" --beam $beam <"$dir/val.en")"
done
bleu() { sed 's/,"sentences_per_s.*//'; }
same 'eval --bleu' "$(run eval "$dir/pairs" --bleu --json | bleu)" "$(protected eval "$dir/pairs" --bleu --json | bleu)"
[ ! -e "$dir/failed" ]
