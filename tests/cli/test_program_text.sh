#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program's text is the program: with KUMI_PROGRAM_TEXT every compiled program is printed, parsed, and replaced by the parsed one. Training
# gives the digest of the compiled one, over models, precisions, ZeRO stages, recomputation and offload.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
fail() { echo "$*" >&2; touch "$dir/failed"; }
run() { timeout 120 "$kumi" "$@" >/dev/null 2>"$dir/err" || fail "kumi $*: exit $?: $(tail -2 "$dir/err")"; }
head -c 20000 data/tinyshakespeare.txt >"$dir/text"
config() { # model keys
    printf '{"model":{%s},"data":{"train":"%s"},"checkpoint":{"every":0},"optimizer":{"lr":0.003},
     "train":{"steps":3,"global_batch":8,"virtual_shards":4,"micro_batch":1,"eval_tokens":256,"eval_every":2,"log_every":1,"threads":1}}' \
        "$1" "$dir/text"
}
config '"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":32,"n_positions":16,"vocab_size":256,"n_inner":64' >"$dir/gpt2.json"
config '"model_type":"llama","num_hidden_layers":2,"num_attention_heads":2,"hidden_size":32,"max_position_embeddings":16,"vocab_size":256,
    "intermediate_size":64' >"$dir/llama.json"
row=0
while read -r model n args; do
    set=()
    for arg in $args; do set+=(--set "$arg"); done
    row=$((row + 1))
    run train "$dir/$model.json" -n "$n" "${set[@]}" --out "$dir/$row"
    KUMI_PROGRAM_TEXT=1 run train "$dir/$model.json" -n "$n" "${set[@]}" --out "$dir/$row-text"
    want=$("$kumi" ckpt digest "$dir/$row") got=$("$kumi" ckpt digest "$dir/$row-text")
    [ -n "$want" ] && [ "$want" = "$got" ] || fail "$model -n $n $args: '$want' compiled, '$got' parsed"
done <<'ROWS'
gpt2 1 precision.compute=bf16 memory.recompute=full
gpt2 2 parallel.zero=1
gpt2 2 parallel.zero=3 precision.compute=f16 train.clip_norm=1
llama 2 parallel.zero=2 precision.compute=bf16 parallel.grad_sync=micro
llama 2 parallel.zero=3 memory.offload.optimizer=host
gpt2 2 parallel.pp=2 parallel.pp_schedule=zb-h1 precision.compute=bf16
llama 4 parallel.pp=2 parallel.tp=2 parallel.sp=true
ROWS

# texts alone: what a parsed program prints is the text of the compiled one
while read -r model n args; do
    set=()
    for arg in $args; do set+=(--set "$arg"); done
    for precision in f32 bf16 f16; do
        set -- graph "configs/$model.json" -n "$n" "${set[@]}" --set precision.compute=$precision
        [[ $args =~ parallel.pp=([0-9]+) ]] && pp=${BASH_REMATCH[1]} || pp=1
        for ((k = 0; k < pp; k++)); do
            "$kumi" "$@" --coordinate $k >"$dir/compiled" 2>"$dir/err" || fail "kumi $* --coordinate $k: $(tail -1 "$dir/err")"
            KUMI_PROGRAM_TEXT=1 "$kumi" "$@" --coordinate $k >"$dir/parsed" 2>"$dir/err" || fail "kumi $* --coordinate $k, parsed: $(tail -1 "$dir/err")"
            cmp "$dir/compiled" "$dir/parsed" >&2 || fail "kumi $* --coordinate $k: the texts differ"
            [ "$pp" = 1 ] || grep -q ' start send #' "$dir/compiled" || fail "kumi $* --coordinate $k: no message"
        done
    done
done <<'ROWS'
bert-tiny 1
bert-tiny 4 parallel.zero=2 memory.recompute=selective
gpt2-124m 2 parallel.zero=3 memory.recompute=full
gpt2-124m 4 parallel.zero=1 parallel.grad_sync=micro
gpt2-1.3b-offload 2
llama-tiny 1 memory.recompute=full
llama-tiny 4 parallel.zero=2 parallel.share_host_state=false
llama-tiny 2 parallel.zero=3 parallel.share_host_state=false
gpt2-124m 2 parallel.pp=2
gpt2-124m 16 parallel.pp=4 parallel.tp=2 parallel.sp=true parallel.zero=3 parallel.share_host_state=false parallel.pp_schedule=zb-v
llama-tiny 4 parallel.pp=2 parallel.tp=2 parallel.pp_schedule=zb-h1 memory.recompute=full
resnet18-cifar10 1
resnet18-cifar10 2 parallel.zero=1 parallel.share_host_state=false
ROWS
[ ! -e "$dir/failed" ]
