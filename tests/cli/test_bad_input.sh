#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is wrong with data, tokenizers, models and weights of others, as a user meets it: one line that names it, exit code 3 (2 for the user's own configuration).
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
no() { # code text command..
    local code=$1 text=$2 got is
    shift 2
    got=$(timeout 60 "$kumi" "$@" 2>&1 >/dev/null </dev/null)
    is=$?
    [ $is = "$code" ] && [[ $got == *"kumi: error: $text"* ]] && [ "$(grep -c '^kumi: error:' <<<"$got")" = 1 ] || {
        printf 'kumi %s\n  wanted %s: %s\n  got    %s: %s\n' "$*" "$code" "$text" $is "$got"
        failed=1
    }
}
python3 - "$dir" <<'P'
import json, os, random, struct, sys, zlib
dir, r = sys.argv[1], random.Random(1)
def png():
    rows = b"".join(b"\0" + bytes(r.randrange(256) for _ in range(96)) for _ in range(32))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "wb").write(data)
good = png()
flipped = bytearray(good); flipped[200] ^= 255
bad = {"cut": good[:200], "flipped": bytes(flipped), "empty": b"", "text": b"hello\n", "good": good}
for name, data in bad.items():
    for i in range(8):
        write(f"{dir}/{name}/{'ab'[i % 2]}/{i}.png", data if i == 3 else png())
os.symlink("nowhere", f"{dir}/good/a/9.png")
write(f"{dir}/whole/a/0.png", good), write(f"{dir}/whole/b/0.png", good)
write(f"{dir}/hollow/a/0.png", good), write(f"{dir}/hollow/b/notes.txt", b"x")
write(f"{dir}/flat/0.png", good)
write(f"{dir}/cifar/ok.bin", bytes(3073 * 12)), write(f"{dir}/cifar/long.bin", bytes(3073 * 2 + 9)), write(f"{dir}/cifar/folder/data_batch_1.bin", bytes(3073 * 12))
write(f"{dir}/folder.json", json.dumps({"model": {"model_type": "resnet", "depth": 8, "width": 4, "num_classes": 2, "image_size": 32},
    "data": {"kind": "folder", "train": "x", "val_fraction": 0}, "train": {"epochs": 1, "global_batch": 4, "threads": 1}}).encode())
gpt2 = dict(model_type="gpt2", n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=256)
llama = dict(model_type="llama", hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=32, vocab_size=256)
for name, config in dict(mistral={"model_type": "mistral"}, typeless={"n_layer": 1}, cross=gpt2 | {"add_cross_attention": True}, act=gpt2 | {"activation_function": "mish"},
        yarn=llama | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, quantized=llama | {"quantization_config": {"quant_method": "gptq"}},
        grouped=llama | {"num_key_value_heads": 3}, weightless=gpt2).items():
    write(f"{dir}/hf/{name}/config.json", json.dumps(config).encode())
    write(f"{dir}/hf/{name}.json", json.dumps({"model": {"path": f"{dir}/hf/{name}"}, "data": {"train": "data/tinyshakespeare.txt"}, "train": {"steps": 1, "global_batch": 2}}).encode())
for kind in "WordPiece", "Unigram", "WordLevel":
    write(f"{dir}/tokenizer/{kind}.json", json.dumps({"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "Metaspace"}, "model": {"type": kind, "vocab": {"a": 0}}}).encode())
P

if "$kumi" info | grep -q '^ *libpng *[0-9]'; then
    images=(train "$dir/folder.json" --out "$dir/out" --overwrite)
    for how in '' '-n 2 --set data.workers=2'; do # a worker meets it first, the rank that needs it says it
        # shellcheck disable=SC2206
        set=($how)
        no 3 "data: $dir/cut/b/3.png: PNG: the file is truncated; replace or remove it" "${images[@]}" --set data.train="$dir/cut" "${set[@]}"
        no 3 "data: $dir/flipped/b/3.png: PNG: IDAT: incorrect data check; replace or remove it" "${images[@]}" --set data.train="$dir/flipped" "${set[@]}"
    done
    no 3 "data: $dir/empty/b/3.png: an empty file; replace or remove it" "${images[@]}" --set data.train="$dir/empty"
    no 3 "data: $dir/text/b/3.png: not a JPEG or PNG image; convert or remove it" "${images[@]}" --set data.train="$dir/text"
    no 3 "data: $dir/good/a/9.png: No such file or directory; replace or remove it" "${images[@]}" --set data.train="$dir/good"
    for name in cut flipped empty text good; do
        got=$("$kumi" "${images[@]}" --set data.train="$dir/$name" --set data.on_error=skip 2>&1) && [[ $got == *'1 sample could not be read and did not count in the loss'* ]] ||
            { echo "skip $name: $got"; failed=1; }
    done
    no 3 "data: $dir/hollow/b: no images (.jpg, .jpeg, .png) in this class folder; add some or remove it" "${images[@]}" --set data.train="$dir/hollow"
    no 3 "data: $dir/flat: no class folders in it; give the folder that contains them" "${images[@]}" --set data.train="$dir/flat"
fi
cifar=(train "$dir/folder.json" --set data.kind=cifar10 --out "$dir/out" --overwrite)
no 3 "data: $dir/cifar/long.bin: 6155 bytes; a file of cifar10 has records of 3073 bytes; copy it again" "${cifar[@]}" --set data.train="$dir/cifar/long.bin"
no 3 "data: $dir/cifar/folder/data_batch_1.bin: 36876 bytes; a file of cifar10 has 10000 records of 3073 bytes; copy it again" "${cifar[@]}" --set data.train="$dir/cifar/folder"
no 3 "data: $dir/cifar/ok.bin: 36876 bytes; a file of cifar100 has records of 3074 bytes; copy it again" "${cifar[@]}" --set data.kind=cifar100 --set data.train="$dir/cifar/ok.bin"
no 2 'batch: train.global_batch: 40, but only 12 samples' "${cifar[@]}" --set data.train="$dir/cifar/ok.bin" --set train.global_batch=40

hf() { no 3 "model: $dir/hf/$1/config.json: $2" train "$dir/hf/$1.json" --out "$dir/out" --overwrite; }
hf mistral 'model_type: "mistral"; one of: gpt2 llama bert mlp resnet transformer'
hf typeless 'model_type: missing; one of: gpt2 llama'
hf cross 'add_cross_attention: true; it must be false'
hf act 'activation_function: "mish"; one of: gelu_new '
hf yarn 'rope_scaling: "yarn"; a rope_type that is default, linear, dynamic or llama3'
hf quantized 'quantization_config: {"quant_method":"gptq"}; null: quantized weights are not supported'
hf grouped 'num_key_value_heads: 3; it must divide num_attention_heads'
no 3 "weights: $dir/hf/weightless: neither model.safetensors nor model.safetensors.index.json" train "$dir/hf/weightless.json" --out "$dir/out" --overwrite
for kind in WordPiece Unigram WordLevel; do
    no 3 "tokenizer: $dir/tokenizer/$kind.json: model.type: \"$kind\"; kumi supports BPE" tokenizer encode --tokenizer "$dir/tokenizer/$kind.json"
    no 3 "tokenizer: $dir/tokenizer/$kind.json: model.type: \"$kind\"; kumi supports BPE" train configs/shakespeare-fast.json --set data.tokenizer="$dir/tokenizer/$kind.json" --out "$dir/out" --overwrite
done
exit $failed
