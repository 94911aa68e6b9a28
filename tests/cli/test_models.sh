#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Llama and BERT from their configurations: equal bits on 1 and 2 ranks, resumed, exported and read again; what they cannot do is refused.
. "$2/tests/cli/begin.sh"
small=(--set train.eval_tokens=256 --set train.virtual_shards=2 --set train.global_batch=4 --set data.seq_len=24)
digest() { "$kumi" ckpt digest "$@"; }
for model in llama bert; do
    case $model in
    llama) some=(--set model.num_hidden_layers=1 --set model.attention_dropout=0.1 --set model.attention_bias=true) ;;
    bert) some=(--set model.num_hidden_layers=1 --set model.hidden_dropout_prob=0.1 --set model.attention_probs_dropout_prob=0.1) ;;
    esac
    run() { # name steps more..
        local out=$dir/$model-$1 steps=$2
        shift 2
        "$kumi" train "configs/$model-tiny.json" "${small[@]}" "${some[@]}" --out "$out" --until "$steps" "$@" >"$dir/log" 2>&1 || say "$model: $(tail -1 "$dir/log")"
    }
    run one 4
    run two 4 -n 2
    run part 2 -n 2
    run part 4 --resume
    [ "$(digest "$dir/$model-one")" = "$(digest "$dir/$model-two")" ] || say "$model: 1 and 2 ranks differ"
    [ "$(digest "$dir/$model-one")" = "$(digest "$dir/$model-part")" ] || say "$model: resumed differs"
    run bf16 2 --set precision.compute=bf16
    "$kumi" ckpt export "$dir/$model-one" --to "$dir/$model-hf" >/dev/null || say "$model: no export"
    got=$("$kumi" train "configs/$model-tiny.json" "${small[@]}" "${some[@]}" --set model.path="$dir/$model-hf" --out "$dir/$model-again" --until 1 2>&1) || say "$model: exported weights do not load: $got"
done
# files converted from TensorFlow have other names of the norms' parameters
mkdir "$dir/bert-tf"
cp "$dir/bert-hf/config.json" "$dir/bert-tf"
python3 - "$dir" <<'P' || failed=1
import json, struct, sys
data = open(sys.argv[1] + "/bert-hf/model.safetensors", "rb").read()
n, = struct.unpack("<Q", data[:8])
text = data[8:8 + n].decode()
new = text.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta").encode()
assert text.encode() != new and json.loads(new)
new += b" " * (-len(new) % 8)
open(sys.argv[1] + "/bert-tf/model.safetensors", "wb").write(struct.pack("<Q", len(new)) + new + data[8 + n:])
P
"$kumi" train configs/bert-tiny.json "${small[@]}" "${some[@]}" --set model.path="$dir/bert-tf" --out "$dir/bert-tf-again" --until 1 >"$dir/log" 2>&1 || say "bert: gamma and beta: $(tail -1 "$dir/log")"
[ "$(digest "$dir/bert-again")" = "$(digest "$dir/bert-tf-again")" ] || say 'bert: gamma and beta: another digest'
"$kumi" sample "$dir/llama-one" --tokens 4 --prompt To >/dev/null 2>&1 || say 'llama: no sample'
got=$("$kumi" sample "$dir/bert-one" 2>&1)
[ $? = 2 ] && [[ $got == *"model: bert: models of this type cannot generate text"* ]] || say "bert: sample: $got"
got=$("$kumi" train configs/bert-tiny.json --set data.mask_token=257 --out "$dir/x" 2>&1)
[ $? = 2 ] && [[ $got == *"data.mask_token"*"below the model's vocab_size"* ]] || say "bert: mask_token: $got"
# the mask token that the configuration does not name is found, and kept by a resume and an evaluation
run null 2 --set data.mask_token=null
run null 4 --set data.mask_token=null --resume
[ "$(digest "$dir/bert-one")" = "$(digest "$dir/bert-null")" ] || say "bert: mask_token null: not 256"
grep -q '"data.mask_token": *256' "$dir/bert-null/checkpoints/step-00000004/manifest.json" || say "bert: the manifest does not name the mask token"
loss() { "$kumi" eval "$dir/$1" --json 2>/dev/null | grep -o '"val_loss":[^,]*'; }
[ -n "$(loss bert-one)" ] && [ "$(loss bert-one)" = "$(loss bert-null)" ] || say "bert: eval: $(loss bert-one), $(loss bert-null)"
exit $failed
