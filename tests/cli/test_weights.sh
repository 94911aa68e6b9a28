#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A start from someone's weights: what is there is used, what is damaged or differs is named before anything is allocated from its numbers.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 "$source/tests/cli/make_weights.py" "$dir" || exit 1
try() { # case code text more..
    local name=$1 code=$2 text=$3 got is
    shift 3
    printf '{"model":{"path":"%s"},"data":{"train":"%s/good.bin","format":"u16"},"train":{"steps":1,"global_batch":2}}' \
        "$dir/$name" "$dir" >"$dir/$name.json"
    rm -rf "$dir/out"
    got=$("$kumi" train "$dir/$name.json" --out "$dir/out" -n 2 "$@" 2>&1)
    is=$?
    if [ $is != "$code" ] || [[ $got != *"${text//DIR/$dir/$name}"* ]]; then
        printf '%s: wanted %s: %s\n  got %s: %s\n' "$name" "$code" "$text" $is "$got"
        failed=1
    fi
    [ "$code" = 0 ] || [ "$(grep -c '^kumi: error:' <<<"$got")" = 1 ] || { echo "$name: not one error line: $got"; failed=1; }
}
data='safetensors: DIR/model.safetensors:'
try good 0 'validation loss: 4.1'
try prefixed 0 'validation loss: 4.1'
try differs 3 'weights: DIR: 2 missing, 1 extra, 1 misshapen: wpe.weight is [8,13] instead of [8,12], missing h.0.attn.c_proj.weight, missing ln_f.bias, extra extra.weight; is this the model that was saved?'
try truncated 3 "$data h.0.mlp.c_proj.weight: data_offsets [8592, 10896] are not inside the file's 10844 bytes of data; is the file whole?"
try long 3 "$data 16 bytes behind the last tensor's end at 12304; the file is longer than its header says"
try flipped 3 "$data wte.weight: unknown key \"rhape\""
try overlap 3 "$data wpe.weight overlaps with wte.weight: begins at byte"
try twice 3 'duplicate object key near '"'"'"wte.weight"'"'"
try absurd 3 "$data wte.weight: the product of shape's 2 dimensions is over 2^63"
try huge 3 "$data a header of 4611686018427387904 bytes; at most 100000000 are allowed: is this a safetensors file?"
try tiny 3 "$data 3 bytes; no file has under 10"
try none 3 'model: DIR: json: DIR/config.json: cannot be read: No such file or directory'
try good 3 "data: $dir/bad.bin: token 61 at byte 500; the model's vocabulary has 61 (model.vocab_size)" \
    --set data.train="$dir/bad.bin" --set data.val_fraction=0 --set data.shuffle=false --set train.steps=30

# keys beside path are taken over those of its config.json
try good 0 'validation loss: 4.1' --set model.resid_pdrop=0.25 --set model.num_attention_heads=2 --set model.activation_function=relu
python3 - "$dir/out" <<'P' || failed=1
import glob, json, sys
c = json.load(open(glob.glob(sys.argv[1] + "/checkpoints/*/model/config.json")[0]))
got = c["resid_pdrop"], c["n_head"], c["activation_function"], c["n_embd"]
if got != (0.25, 2, "relu", 12):
    sys.exit("overrides beside model.path: %s" % (got,))
P
try good 3 'weights: DIR: 12 missing, 0 extra, 0 misshapen: missing h.1.ln_1.weight, ' --set model.n_layer=2
try good 3 'wpe.weight is [8,12] instead of [8,24]' --set model.hidden_size=24
try good 2 'config: --set model.n_head=5: model.n_head: 5; it must divide n_embd, 12' --set model.n_head=5
try good 2 'config: --set model.attn_pdrop=2: model.attn_pdrop: 2; a probability in [0, 1)' --set model.attn_pdrop=2
try good 2 "its other spelling is given too, with another value" --set model.n_embd=12 --set model.hidden_size=24
exit $failed
