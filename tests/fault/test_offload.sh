#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads and writes of offloaded state that fail: one line, exit 5, and the checkpoints before are whole.
set -u
kumi=$1/kumi source=$2 failed=0 n_read=0 n_written=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d -p "$1")
trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
say() { echo "$*"; failed=1; }
for _ in $(seq 400); do echo "the quick brown fox jumps over the lazy dog."; done >"$dir/text.txt"
printf '{"model":{"model_type":"gpt2","n_layer":1,"n_head":2,"n_embd":48,"n_positions":16,"vocab_size":256},
 "data":{"train":"%s","seq_len":16},"train":{"steps":6,"global_batch":4,"eval_every":0,"eval_tokens":64,"log_every":0},
 "memory":{"offload":{"optimizer":"file","activations":"file","path":"%s","buffer_size":8192}},
 "checkpoint":{"every":2,"keep":0}}' "$dir/text.txt" "$dir" >"$dir/c.json"
for ranks in 1 2; do
    for fault in os:{20,60,100,150,200,300,400,500,700,1000} write:{5,20,50,100,200,300,500}; do
        rm -rf "$dir/out"
        KUMI_FAULT=$fault timeout 60 "$kumi" train "$dir/c.json" -n $ranks --out "$dir/out" >/dev/null 2>"$dir/err"
        code=$?
        [ $code != 124 ] && [ $code -lt 70 ] || say "$fault on $ranks: exit $code: $(cat "$dir/err")"
        lines=$(tr '\r' '\n' <"$dir/err" | grep -c '^kumi: error:')
        if grep -q '^kumi: error: offload: ' "$dir/err"; then
            [ $code = 5 ] && [ "$lines" = 1 ] || say "$fault on $ranks: exit $code, $lines error lines: $(cat "$dir/err")"
            grep -q ': reading: Input/output error; the last checkpoint is intact' "$dir/err" && n_read=$((n_read + 1))
            grep -q ': writing: No space left on device; the last checkpoint is intact' "$dir/err" && n_written=$((n_written + 1))
        fi
        for snapshot in "$dir"/out/checkpoints/step-*; do
            [ -d "$snapshot" ] || continue
            "$kumi" ckpt verify "$snapshot" >/dev/null 2>"$dir/err2" || say "$fault on $ranks: $snapshot: $(cat "$dir/err2")"
        done
        [ -z "$(find "$dir" -maxdepth 1 -name '.kumi*')" ] || say "$fault on $ranks: a file is left"
    done
done
echo "met: $n_read reads, $n_written writes"
[ $n_read -gt 0 ] && [ $n_written -gt 0 ] || say "no fault met a read ($n_read) or a write ($n_written)"
exit $failed
