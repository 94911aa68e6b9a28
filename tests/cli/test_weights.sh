#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A start from someone's weights: what is there is used, what is damaged or differs is named before anything is allocated from its numbers.
. "$2/tests/cli/begin.sh"
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
try long 3 "$data 16 bytes after the last tensor's end at 12304; the file is longer than its header says"
try flipped 3 "$data wte.weight: unknown key \"rhape\""
try overlap 3 "$data wpe.weight overlaps with wte.weight: begins at byte"
try twice 3 'duplicate object key near '"'"'"wte.weight"'"'"
try absurd 3 "$data wte.weight: the product of shape's 2 dimensions is over 2^63"
try huge 3 "$data a header of 4611686018427387904 bytes; at most 100000000 are allowed: is this a safetensors file?"
try tiny 3 "$data 3 bytes; the smallest file has 10"
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
try good 2 "the key is given under two names with different values; remove one" --set model.n_embd=12 --set model.hidden_size=24

# weights of PyTorch's and Keras' own forms are known, and what converts them is named
try torch 3 'weights: DIR/pytorch_model.bin: a pickle of PyTorch, which can run code when read; convert it: python3 tools/pth2safetensors.py FILE OUT'
try keras 3 'weights: DIR/tf_model.h5: an HDF5 file; convert it: python3 tools/pth2safetensors.py FILE OUT'
# wrappers' prefixes, other names, missing tensors
try wrapped 0 'all names begin with _orig_mod.module., which is removed'
try renamed 3 'weights: DIR: 2 missing, 2 extra, 0 misshapen: '
try renamed 0 'validation loss: ' --set model.map='{"tok_embeddings":"wte.weight","final_beta":"ln_f.bias"}'
try renamed 3 'weights: DIR: map: the files have no tensor absent (for wte.weight)' --set model.map='{"absent":"wte.weight"}'
try renamed 2 'model.map: "wte.weight"; {"name in the files"' --set model.map='"wte.weight"'
try fewer 3 'weights: DIR: 2 missing, 0 extra, 0 misshapen: missing h.0.attn.c_proj.bias, missing ln_f.bias'
try fewer 0 '2 tensors are missing' --set model.allow_missing=true

# in and out again: the same bytes, tensor by tensor, and file by file
ok() { "$kumi" "$@" || { echo "kumi $*: failed"; failed=1; }; }
no() { # code text args..
    local code=$1 text=$2 got is
    shift 2
    got=$("$kumi" "$@" 2>&1)
    is=$?
    [ $is = "$code" ] && [[ $got == *"$text"* ]] || { printf 'kumi %s: wanted %s: %s\n  got %s: %s\n' "$*" "$code" "$text" $is "$got"; failed=1; }
}
for kind in F32 F16 BF16; do
    ok ckpt import "$dir/is_$kind" --to "$dir/in_$kind"
    ok ckpt export "$dir/in_$kind" --to "$dir/out_$kind" --shard-size 4KB
    cmp "$dir/is_$kind/model.safetensors" "$dir/in_$kind/model.safetensors" || failed=1
done
ok ckpt import "$dir/wrapped" --to "$dir/unwrapped"
ok ckpt export "$dir/wrapped" --to "$dir/unwrapped_out"
ok ckpt import "$dir/renamed" --to "$dir/named" --map tok_embeddings=wte.weight --map final_beta=ln_f.bias
ok ckpt import "$dir/fewer" --to "$dir/few" --allow-missing
ok ckpt import "$dir/is_F32/model.safetensors" --model "$dir/good/config.json" --to "$dir/single" --dtype bf16
# a training's configuration says the model too, from a directory or by its own keys
ok ckpt import "$dir/is_F32/model.safetensors" --model "$dir/good.json" --to "$dir/trained_path"
python3 -c 'import json, sys; print(json.dumps({"model": {k: v for k, v in json.load(open(sys.argv[1] + "/good/config.json")).items() if v is not None}, "data": {"train": "x"}, "train": {"steps": 3}}))' "$dir" >"$dir/inline.json"
ok ckpt import "$dir/is_F32/model.safetensors" --model "$dir/inline.json" --to "$dir/trained_keys" --dtype f16
ok ckpt export "$dir/is_BF16" --to "$dir/wider" --dtype f32
# what a killed export left is no obstacle, and goes; a folder of another program stays
mkdir -p "$dir/half.tmp" "$dir/half.kumi-tmp-0badcafe/sub"
ok ckpt export "$dir/is_F32" --to "$dir/half" --dtype f16
[ -d "$dir/half.tmp" ] && [ ! -e "$dir/half.kumi-tmp-0badcafe" ] || { echo 'leftovers of an export'; failed=1; }
ok ckpt export "$dir/out" --to "$dir/run" --dtype bf16 --shard-size 2KB
# beside an untied head transformers requires the prefix; a start reads names with and without it
untied() { # name path
    ok train tests/fixtures/gpt2/untied/train.json --until 1 --out "$dir/$1" --set model.path="$2"
}
untied untied tests/fixtures/gpt2/untied
bare=$dir/untied/checkpoints/step-00000001/model
ok ckpt export "$dir/untied" --to "$dir/untied_run" --shard-size 4KB
ok ckpt export "$bare" --to "$dir/untied_out"
ok ckpt import "$bare" --to "$dir/untied_in"
untied from_bare "$bare"
untied from_prefixed "$dir/untied_run"
[ "$("$kumi" ckpt digest "$dir/from_bare")" = "$("$kumi" ckpt digest "$dir/from_prefixed")" ] || { echo 'untied head: digests differ'; failed=1; }
python3 - "$dir" <<'P' || failed=1
import json, os, struct, sys
D = sys.argv[1]
def one(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    h = json.loads(data[8:8 + n])
    h.pop("__metadata__")
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in h.items()}
def load(name):
    d = f"{D}/{name}/"
    if os.path.exists(d + "model.safetensors"):
        return one(d + "model.safetensors")
    index = json.load(open(d + "model.safetensors.index.json"))
    all = {}
    for file in sorted(set(index["weight_map"].values())):
        part = one(d + file)
        for k in part:
            assert index["weight_map"][k] == file, (k, file)
        size = sum(len(x[2]) for x in part.values())
        assert size <= 4000 or len(part) == 1, (file, size)
        all |= part
    assert index["metadata"]["total_size"] == sum(len(x[2]) for x in all.values())
    assert len(set(index["weight_map"].values())) > 1
    return all
def dtype(name): return json.load(open(f"{D}/{name}/config.json")).get("torch_dtype")
for kind in ("F32", "F16", "BF16"):
    assert load("is_" + kind) == load("in_" + kind) == load("out_" + kind), kind
strip = len("_orig_mod.module.transformer.")
assert {k[strip:]: v for k, v in load("wrapped").items()} == load("unwrapped")
assert {"transformer." + k: v for k, v in load("unwrapped").items()} == load("unwrapped_out")
names = {"tok_embeddings": "wte.weight", "final_beta": "ln_f.bias"}
assert {names.get(k, k): v for k, v in load("renamed").items()} == load("named")
assert load("fewer") == load("few")
def bf16(data): # to nearest, ties to even
    out = b""
    for (x,) in struct.iter_unpack("<I", data):
        out += struct.pack("<H", (x + 0x7fff + (x >> 16 & 1)) >> 16)
    return out
assert {k: ("BF16", s, bf16(d)) for k, (_, s, d) in load("is_F32").items()} == load("single") and dtype("single") == "bfloat16"
widened = {k: ("F32", s, b"".join(b"\0\0" + d[i:i + 2] for i in range(0, len(d), 2))) for k, (_, s, d) in load("is_BF16").items()}
assert widened == load("wider") and dtype("wider") == "float32"
assert load("trained_path") == load("is_F32")
f16 = {k: ("F16", s, struct.pack(f"<{len(d)//4}e", *struct.unpack(f"<{len(d)//4}f", d))) for k, (_, s, d) in load("is_F32").items()}
assert f16 == load("half") == load("trained_keys") and dtype("half") == dtype("trained_keys") == "float16"
import glob
last = sorted(glob.glob(D + "/out/checkpoints/step-*"))[-1]
trained = one(last + "/model/model.safetensors")
assert {k: ("BF16", s, bf16(d)) for k, (_, s, d) in trained.items()} == load("run") and dtype("run") == "bfloat16"
bare = one(D + "/untied/checkpoints/step-00000001/model/model.safetensors")
prefixed = {k if k == "lm_head.weight" else "transformer." + k: v for k, v in bare.items()}
assert "lm_head.weight" in bare and prefixed == load("untied_run") == load("untied_out") == load("untied_in")
P
# what goes with a model goes into its checkpoints and exports: keys of config.json, generation_config.json, the tokenizer
python3 - "$dir" <<'P'
import json, shutil, string, sys
d = sys.argv[1] + "/start"
shutil.copytree(sys.argv[1] + "/good", d)
config = json.load(open(d + "/config.json"))
json.dump(config | {"eos_token_id": 3, "bos_token_id": 1, "pad_token_id": None, "summary_type": "mean", "custom": {"a": [1.5]}}, open(d + "/config.json", "w"))
json.dump({c: i for i, c in enumerate(string.ascii_letters + string.digits[:9])}, open(d + "/vocab.json", "w"))
json.dump({"pad_token": "c", "model_max_length": 10**30}, open(d + "/tokenizer_config.json", "w"))
json.dump({"eos_token_id": list(range(61)), "temperature": 0.5}, open(d + "/generation_config.json", "w"))
open(d + "/merges.txt", "w").write("#version: 0.2\n")
P
printf '{"model":{"path":"%s/start","n_positions":8},"data":{"train":"%s/good.bin","format":"u16"},"train":{"steps":1,"global_batch":2}}' "$dir" "$dir" >"$dir/start.json"
ok train "$dir/start.json" --out "$dir/begun" -n 2
cp -r "$dir/start" "$dir/kept"
rm -r "$dir/start" # a resume, also elsewhere, has all that it needs
mv "$dir/begun" "$dir/moved"
ok train "$dir/start.json" --out "$dir/moved" --resume --set train.steps=2
ok ckpt verify "$dir/moved"
ok ckpt export "$dir/moved" --to "$dir/carried"
ok ckpt export "$dir/carried" --to "$dir/carried2" --dtype bf16
ok ckpt import "$dir/carried" --to "$dir/carried3"
for name in carried carried2 carried3; do
    for file in vocab.json merges.txt tokenizer_config.json generation_config.json; do
        cmp "$dir/kept/$file" "$dir/$name/$file" || failed=1
    done
    python3 -c 'import json, sys
was, now = (json.load(open(f"{d}/config.json")) for d in sys.argv[1:])
lost = {k: (v, now.get(k)) for k, v in was.items() if now.get(k, 0) != v and k not in ("torch_dtype", "dtype")}
sys.exit(str(lost) if lost else 0)' "$dir/kept" "$dir/$name" || { echo "$name: keys of config.json"; failed=1; }
done
# every token ends a text there; with another tokenizer, or without those ids, texts go on
for from in moved carried; do
    [ "$("$kumi" sample "$dir/$from" --prompt abc --tokens 5 2>/dev/null)" = abc ] || { echo "$from: end of sequence"; failed=1; }
done
python3 -c 'import json, sys
v = json.load(open(sys.argv[1] + "/kept/vocab.json"))
json.dump({c: 60 - i for c, i in v.items()}, open(sys.argv[1] + "/other.json", "w"))' "$dir"
mkdir "$dir/other"
mv "$dir/other.json" "$dir/other/vocab.json"
cp "$dir/kept/merges.txt" "$dir/other"
rm "$dir/carried2/generation_config.json"
sed -i 's/"eos_token_id": 3/"eos_token_id": null/' "$dir/carried2/config.json"
own=$("$kumi" sample "$dir/carried2" --prompt abc --tokens 5 --temperature 0 2>/dev/null)
other=$("$kumi" sample "$dir/carried2" --prompt abc --tokens 5 --temperature 0 --tokenizer "$dir/other" 2>/dev/null)
[ ${#own} = 8 ] && [ ${#other} = 8 ] && [ "$own" != "$other" ] || { echo "--tokenizer: $own, $other"; failed=1; }
rm "$dir/carried3/vocab.json" "$dir/carried3/merges.txt"
no 3 'no tokenizer for a vocabulary of 61; name one with --tokenizer' sample "$dir/carried3"
printf '{"eos_token_id": "x"}' >"$dir/carried2/generation_config.json"
no 3 "generation_config.json: eos_token_id: give a token id, or a list" sample "$dir/carried2" --prompt abc
printf ' ' >>"$dir"/moved/checkpoints/step-00000002/model/vocab.json
no 4 'model/vocab.json: its checksum differs' ckpt verify "$dir/moved"
no 4 'model/vocab.json: its checksum differs' sample "$dir/moved/checkpoints/step-00000002" --prompt abc
ok sample "$dir/moved" --prompt abc --tokens 1
# a directory is evaluated on what is named; a run that begins with a directory's weights has that loss
printf 'abcdefghijklmnopqrstuvwxyzabcdefgh' >"$dir/held.txt"
"$kumi" tokenizer encode --tokenizer "$dir/kept" --to "$dir/held.bin" <"$dir/held.txt" >"$dir/said" || failed=1
got=$("$kumi" eval "$dir/carried" --data "$dir/held.txt" --json)
[ "$got" = "$("$kumi" eval "$dir/carried" --data "$dir/held.bin" --seq-len 8 -n 2 --json)" ] && [[ $got == *'"step":null,"tokens":32,'*'"bytes":32,'* ]] || { echo "eval: $got"; failed=1; }
no 2 'a directory of weights has no data of its own' eval "$dir/carried"
no 2 '--seq-len: 9; the model has 8 positions' eval "$dir/carried" --data "$dir/held.bin" --seq-len 9
no 2 '--tokenizer and --seq-len are for directories' eval "$dir/out" --seq-len 8
# an export of a directory holds its weights against its config.json
no 3 "$dir/differs: 2 missing, 1 extra, 1 misshapen" ckpt export "$dir/differs" --to "$dir/x"
no 11 "weights: $dir/half: already exists; give a new folder" ckpt export "$dir/is_F32" --to "$dir/half"
no 2 '--to DIR is missing' ckpt export "$dir/is_F32"
no 2 '--shard-size: 2 apples' ckpt export "$dir/is_F32" --to "$dir/x" --shard-size '2 apples'
no 2 'dtype' ckpt export "$dir/is_F32" --to "$dir/x" --dtype f8
no 3 "$dir/differs: 2 missing, 1 extra, 1 misshapen" ckpt import "$dir/differs" --to "$dir/x"
sed 's/"steps"/"stepz"/' "$dir/inline.json" >"$dir/typo.json"
no 2 'train.stepz: unknown key; did you mean steps?' ckpt import "$dir/is_F32" --model "$dir/typo.json" --to "$dir/x"
printf '{"model":{"model_type":"transformer"},"data":{"train":"x"}}' >"$dir/pairs.json"
no 2 'the vocabulary sizes come from the data; give model.src_vocab_size and model.tgt_vocab_size' ckpt import "$dir/is_F32" --model "$dir/pairs.json" --to "$dir/x"
no 4 'holds no checkpoint' ckpt export "$dir" --to "$dir/x"
no 4 "checkpoint: $dir/absent: there is no such directory" ckpt export "$dir/absent" --to "$dir/x"
no 3 "$dir/absent: there is no such directory" ckpt import "$dir/absent" --to "$dir/x"
[ ! -e "$dir/x" ] && [ -z "$(compgen -G "$dir/x.*")" ] || { echo 'something is left of a failed export'; failed=1; }
exit $failed
