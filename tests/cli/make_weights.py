# SPDX-License-Identifier: Apache-2.0
"""Writes folders DIR/<case> with a small GPT-2's config.json and model.safetensors, good and damaged, and token files."""
import json, os, struct, sys
D = sys.argv[1]
V, T, C, L = 61, 8, 12, 1
def shapes():
    s = {"wte.weight": [V, C], "wpe.weight": [T, C], "ln_f.weight": [C], "ln_f.bias": [C]}
    for i in range(L):
        h = f"h.{i}."
        s |= {h+"ln_1.weight": [C], h+"ln_1.bias": [C], h+"ln_2.weight": [C], h+"ln_2.bias": [C],
              h+"attn.c_attn.weight": [C, 3*C], h+"attn.c_attn.bias": [3*C], h+"attn.c_proj.weight": [C, C], h+"attn.c_proj.bias": [C],
              h+"mlp.c_fc.weight": [C, 4*C], h+"mlp.c_fc.bias": [4*C], h+"mlp.c_proj.weight": [4*C, C], h+"mlp.c_proj.bias": [C]}
    return s
def pack(tensors, header=None):
    at, h, data = 0, {}, b""
    for name, shape in tensors:
        n = 4
        for d in shape: n *= d
        h[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
        data += struct.pack("<f", 0.01) * (n // 4)
    text = json.dumps(h).encode() if header is None else header(h)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
def folder(name, data):
    d = os.path.join(D, name)
    os.makedirs(d, exist_ok=True)
    json.dump({"model_type": "gpt2", "n_layer": L, "n_head": 3, "n_embd": C, "n_positions": T, "vocab_size": V}, open(d + "/config.json", "w"))
    open(d + "/model.safetensors", "wb").write(data)
s = shapes()
good = list(s.items())
folder("good", pack(good))
masks = [(f"transformer.h.{i}.attn.bias", [1, 1, T, T]) for i in range(L)]
folder("prefixed", pack([("transformer." + n, x) for n, x in good] + masks))
bad = [(n, x) for n, x in good if n != "ln_f.bias" and n != "h.0.attn.c_proj.weight"] + [("extra.weight", [2])]
bad = [(n, [T, C + 1] if n == "wpe.weight" else x) for n, x in bad]
folder("differs", pack(bad))
whole = pack(good)
folder("truncated", whole[:-100])
folder("long", whole + b"\0" * 16)
i = whole.index(b"shape")
folder("flipped", whole[:i] + bytes([whole[i] ^ 1]) + whole[i+1:])
def overlap(h):
    k = list(h)
    h[k[1]]["data_offsets"] = [h[k[1]]["data_offsets"][0] - 4, h[k[1]]["data_offsets"][1] - 4]
    return json.dumps(h).encode()
folder("overlap", pack(good, overlap))
folder("twice", pack(good, lambda h: json.dumps(h).encode()[:-1] + b', "wte.weight": ' + json.dumps(h["wte.weight"]).encode() + b"}"))
def absurd(h):
    h["wte.weight"]["shape"] = [1 << 40, 1 << 40]
    return json.dumps(h).encode()
folder("absurd", pack(good, absurd))
folder("huge", struct.pack("<Q", 1 << 62) + whole[8:])
folder("tiny", b"abc")
open(D + "/bad.bin", "wb").write(struct.pack("<300H", *[i % 61 if i != 250 else 61 for i in range(300)]))
open(D + "/good.bin", "wb").write(struct.pack("<300H", *[i % 61 for i in range(300)]))

# weights that travel: values of every kind, in several dtypes, under others' names
import random
R = random.Random(7)
def numbers(n, kind):
    values = [R.choice([0.0, -0.0, 1.0, -1.5, 3.14159, 1e-3, R.gauss(0, 0.02)]) for _ in range(n)]
    if kind == "F16": return struct.pack(f"<{n}e", *values)
    data = struct.pack(f"<{n}f", *values)
    return data if kind == "F32" else b"".join(data[4*i+2:4*i+4] for i in range(n))
def travel(name, kind, rename=lambda n: n, drop=()):
    tensors = {rename(n): (x, numbers(eval("*".join(map(str, x))), kind)) for n, x in sorted(s.items()) if n not in drop}
    h, at = {"__metadata__": {"format": "pt"}}, 0
    for n, (x, data) in sorted(tensors.items()):
        h[n] = {"dtype": kind, "shape": x, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(h, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    folder(name, struct.pack("<Q", len(text)) + text + b"".join(d for _, (_, d) in sorted(tensors.items())))
for kind in ("F32", "F16", "BF16"):
    travel("is_" + kind, kind)
travel("wrapped", "F32", lambda n: "_orig_mod.module.transformer." + n)
travel("renamed", "F32", lambda n: {"wte.weight": "tok_embeddings", "ln_f.bias": "final_beta"}.get(n, n))
travel("fewer", "F32", drop=("ln_f.bias", "h.0.attn.c_proj.bias"))
for name, file in (("torch", "pytorch_model.bin"), ("keras", "tf_model.h5")):
    folder(name, b"")
    os.rename(D + f"/{name}/model.safetensors", D + f"/{name}/{file}")
