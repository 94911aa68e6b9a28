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
