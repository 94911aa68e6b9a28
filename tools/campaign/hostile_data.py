# SPDX-License-Identifier: Apache-2.0
"""Weights, tokenizers, texts, documents, arrays, images and shards that are damaged, absurd or made to mislead."""
import io
import json
import struct
import tarfile
import zlib

from hostile import ANY, FEW, TRAIN, Row, changed, safetensors
from hostile_config import GPT2, LLAMA, MLP, PAIRS, RESNET

BAD = (2, 3)
INPUT = (3,)
WEIGHTS = (("ckpt", "import", "hf", "--to", "to"), ("ckpt", "export", "hf", "--to", "to2"), ("train", "config.json", "--out", "o", *FEW, "--set", 'model={"path":"hf"}'))


def gpt2_shapes():
    e, v, p = GPT2["n_embd"], GPT2["vocab_size"], GPT2["n_positions"]
    shapes = {"wte.weight": [v, e], "wpe.weight": [p, e], "ln_f.weight": [e], "ln_f.bias": [e]}
    for name, shape in (("ln_1.weight", [e]), ("ln_1.bias", [e]), ("ln_2.weight", [e]), ("ln_2.bias", [e]), ("attn.c_attn.weight", [e, 3 * e]), ("attn.c_attn.bias", [3 * e]),
                        ("attn.c_proj.weight", [e, e]), ("attn.c_proj.bias", [e]), ("mlp.c_fc.weight", [e, 4 * e]), ("mlp.c_fc.bias", [4 * e]), ("mlp.c_proj.weight", [4 * e, e]), ("mlp.c_proj.bias", [e])):
        shapes[f"h.0.{name}"] = shape
    return shapes


def header():
    at, found = 0, {}
    for name, shape in sorted(gpt2_shapes().items()):
        n = 4
        for d in shape:
            n *= d
        found[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    return found, at


def edited(**changes):
    """The header with other fields of wte.weight."""
    h, n = header()
    h["wte.weight"] |= changes
    return safetensors(h, bytes(n))


def weights():
    h, n = header()
    whole = safetensors(h, bytes(n))
    text = json.dumps(h)
    end = h["wte.weight"]["data_offsets"][1]
    files = {
        "of no bytes": b"", "of 7 bytes": b"1234567", "of zeros": bytes(4096), "a header of 0 bytes": safetensors(b"", bytes(n)), "a header longer than the file": safetensors(h, b"", 10**6),
        "a header of 2^63 bytes": safetensors(h, bytes(n), 2**63), "a header of 2^64 - 1 bytes": safetensors(h, bytes(n), 2**64 - 1), "a header that is no JSON": safetensors(b"x" * 64, bytes(n)),
        "a header that is an array": safetensors(b"[]", bytes(n)), "a header of blanks": safetensors(b" " * 10**6, bytes(n)), "a deep header": safetensors(b'{"a":' * 100000, bytes(n)),
        "a name twice": safetensors((text[:-1] + "," + text[1:]).encode(), bytes(n)), "no tensors": safetensors({}, b""), "metadata of numbers": safetensors({"__metadata__": {"a": 1}, **h}, bytes(n)),
        "metadata a list": safetensors({"__metadata__": [], **h}, bytes(n)), "a name of 1 MB": safetensors({"x" * 10**6: h["wte.weight"], **h}, bytes(n)), "a NUL in a name": safetensors({"wte\0weight": h["wte.weight"], **h}, bytes(n)),
        "a dtype unknown": edited(dtype="F99"), "a dtype of integers": edited(dtype="I64"), "no dtype": edited(dtype=None), "a shape that is negative": edited(shape=[-256, 16]), "a shape of fractions": edited(shape=[256.5, 16]),
        "a shape beyond 2^63": edited(shape=[2**40, 2**40]), "a shape that overflows to the right size": edited(shape=[2**32, 2**32, 4096]), "a shape of 100 dimensions": edited(shape=[1] * 100), "a shape of zeros": edited(shape=[0, 16]),
        "a shape of strings": edited(shape=["256", "16"]), "offsets that are reversed": edited(data_offsets=[end, 0]), "offsets beyond the file": edited(data_offsets=[n, 2 * n]), "offsets of 2^63": edited(data_offsets=[0, 2**63 - 1]),
        "offsets of 2^64": edited(data_offsets=[0, 2**64]), "offsets that are negative": edited(data_offsets=[-8, 8]), "offsets that overlap": edited(data_offsets=[0, 256 * 16 * 4]), "offsets of fractions": edited(data_offsets=[0.5, 16384.5]),
        "three offsets": edited(data_offsets=[0, 1, 2]), "cut off": whole[:-1], "longer": whole + b"x", "half": whole[:len(whole) // 2], "one tensor less": safetensors({k: v for k, v in h.items() if k != "wpe.weight"}, bytes(n)),
        "100,000 tensors": safetensors({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100000)}, b""),
    }
    rows = [Row(f"weights: {name}", INPUT, each=WEIGHTS, files={"hf/config.json": GPT2, "hf/model.safetensors": data}) for name, data in files.items()]
    rows.append(Row("weights: not finite", ANY, each=WEIGHTS, files={"hf/config.json": GPT2, "hf/model.safetensors": safetensors(h, b"\xff" * n)}))
    index = {
        "a file that is not there": {"weight_map": {k: "none.safetensors" for k in h}}, "a path upwards": {"weight_map": {k: "../../../etc/passwd" for k in h}}, "an absolute path": {"weight_map": {k: "/etc/passwd" for k in h}},
        "numbers": {"weight_map": {k: 3 for k in h}}, "no map": {}, "an array": [], "itself": {"weight_map": {k: "model.safetensors.index.json" for k in h}}, "a folder": {"weight_map": {k: "." for k in h}},
        "text": "x", "tensors elsewhere": {"weight_map": {k: "config.json" for k in h}},
    }
    rows += [Row(f"weights: an index of {name}", INPUT, each=WEIGHTS, files={"hf/config.json": GPT2, "hf/model.safetensors.index.json": data}) for name, data in index.items()]
    configs = {
        "missing": None, "empty": "", "an array": "[]", "a string": '"gpt2"', "a brace": "{", "no model_type": {"n_layer": 1}, "10^9 layers": GPT2 | {"n_layer": 10**9}, "100,000 layers": GPT2 | {"n_layer": 100000},
        "10^9 heads": GPT2 | {"n_head": 10**9}, "10^9 words": GPT2 | {"vocab_size": 10**9}, "a width of 2^40": GPT2 | {"n_embd": 2**40}, "negative layers": GPT2 | {"n_layer": -1}, "layers as text": GPT2 | {"n_layer": "1"},
        "layers as a fraction": GPT2 | {"n_layer": 1.5}, "another model": LLAMA, "llama of 10^9 layers": LLAMA | {"num_hidden_layers": 10**9}, "deep": "[" * 100000, "a NUL": b'{"model_type":"gpt2\0"}', "a name of 10 MB": {"model_type": "x" * 10**7},
        "quantized": GPT2 | {"quantization_config": {"quant_method": "gptq"}}, "a path": {"path": "hf"},
    }
    for name, data in configs.items():
        each = WEIGHTS + (("sample", "hf"), ("eval", "hf", "--data", "text"))
        codes = (0, 2, 3, 4, 13) if name in ("no model_type", "a path", "a name of 10 MB") else (2, 3, 4, 13) # export copies models that it does not know
        rows.append(Row(f"config.json: {name}", codes, each=each, files={"hf/model.safetensors": whole} | ({"hf/config.json": data} if data is not None else {})))
    rows.append(Row("weights: a FIFO", INPUT, each=WEIGHTS, files={"hf/config.json": GPT2, "hf/model.safetensors": "FIFO"}))
    rows.append(Row("weights: a folder", INPUT, each=WEIGHTS, files={"hf/config.json": GPT2, "hf/model.safetensors": "FOLDER"}))
    return rows


def bytes_to_unicode():
    """GPT-2's alphabet: a printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in kept}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(kept))
    return table


def bpe(vocab=None, merges=None, **more):
    letters = bytes_to_unicode()
    return {"model": {"type": "BPE", "vocab": vocab if vocab is not None else {letters[b]: b for b in range(256)}, "merges": merges if merges is not None else []},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}, **more}


def tokenizers():
    letters = bytes_to_unicode()
    vocab = {letters[b]: b for b in range(256)}
    split = lambda pattern: {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    files = {
        "an object": {}, "an array": [], "text": "x", "no bytes": "", "deep": "[" * 100000, "a model without vocab": {"model": {"type": "BPE"}}, "vocab a list": bpe(vocab=[1, 2]), "vocab of text": bpe(vocab={"a": "0"}),
        "negative ids": bpe(vocab=vocab | {"!": -1}), "an id of 2^40": bpe(vocab=vocab | {"!": 2**40}), "an id twice": bpe(vocab=vocab | {"!": 5}), "ids with a gap": bpe(vocab=vocab | {"!!": 10**9}), "a letter less": bpe(vocab={k: v for k, v in vocab.items() if v}),
        "merges of numbers": bpe(merges=[1, 2]), "merges of one word": bpe(merges=["a"]), "merges of three": bpe(merges=["a b c"]), "merges of what is not there": bpe(merges=["zz yy"]), "merges without a result": bpe(merges=["a b"]),
        "a pattern that is none": bpe(pre_tokenizer=split("(")), "a pattern of 1 MB": bpe(pre_tokenizer=split("a" * 10**6)), "nested pattern": bpe(pre_tokenizer=split("(" * 5000 + ")" * 5000)),
        "added tokens nonsense": bpe(added_tokens=[1, "x", {}]), "added tokens of negative id": bpe(added_tokens=[{"id": -5, "content": "<a>", "special": True}]), "an added token of id 2^40": bpe(added_tokens=[{"id": 2**40, "content": "<a>", "special": True}]),
        "an empty added token": bpe(added_tokens=[{"id": 256, "content": "", "special": True}]), "a normalizer unknown": bpe(normalizer={"type": "x"}), "a pre-tokenizer unknown": bpe(pre_tokenizer={"type": "x"}), "a pre-tokenizer null": bpe(pre_tokenizer=None),
    }
    codes = (0, 2, 3)
    rows = []
    for name, data in files.items():
        each = (("tokenizer", "encode", "--tokenizer", "t.json"), ("train", "config.json", "--out", "o", *FEW, "--set", "data.tokenizer=t.json"))
        rows.append(Row(f"tokenizer.json: {name}", codes if any(w in name for w in ("null", "token", "id", "letter")) else INPUT, each=each, files={"t.json": data}, shell="%KUMI% <text"))
    for name, pattern, text in (("backtracks without end", "(a+)+$", "a" * 5000 + "b"), ("matches nothing", "x*", "abc" * 1000), ("looks back", "(?<=a)b", "ab" * 1000), ("recurses", "(a(?1)?b)", "a" * 100000)):
        rows.append(Row(f"tokenizer.json: a pattern that {name}", codes, "tokenizer", "encode", "--tokenizer", "t.json", files={"t.json": bpe(pre_tokenizer=split(pattern)), "in": text}, shell="%KUMI% <in"))
    folders = {
        "vocab.json alone": {"vocab.json": vocab}, "merges.txt alone": {"merges.txt": "#version: 0.2\n"}, "vocab.json of text": {"vocab.json": "x", "merges.txt": ""}, "merges.txt of noise": {"vocab.json": vocab, "merges.txt": bytes(range(256)) * 100},
        "merges.txt of NULs": {"vocab.json": vocab, "merges.txt": bytes(10000)}, "a merge of 1 MB": {"vocab.json": vocab, "merges.txt": "a" * 10**6 + " b\n"}, "merges.txt a folder": {"vocab.json": vocab, "merges.txt": "FOLDER"}, "nothing": {"readme": ""},
        "vocab.json a FIFO": {"vocab.json": "FIFO", "merges.txt": ""},
    }
    for name, data in folders.items():
        rows.append(Row(f"tokenizer: {name}", INPUT, "tokenizer", "encode", "--tokenizer", "t", files={f"t/{k}": v for k, v in data.items()}, shell="%KUMI% <text"))
    for name, text in (("NULs", bytes(100000)), ("one letter", b"a" * 10**6), ("invalid UTF-8", b"\xff\xfe\xc0\x80" * 1000), ("no bytes", b""), ("one word of 2 MB", "日".encode() * 700000)):
        rows.append(Row(f"tokenizer encode of {name}", (0, 3), "tokenizer", "encode", "--tokenizer", "t.json", files={"t.json": bpe(), "in": text}, shell="%KUMI% <in >/dev/null"))
    for name, text in (("words", "x y z"), ("negative ids", "-1 -2"), ("ids of 2^70", str(2**70)), ("ids beyond the vocabulary", "99999"), ("NULs", bytes(100))):
        rows.append(Row(f"tokenizer decode of {name}", (0, 2, 3), "tokenizer", "decode", "--tokenizer", "byte", files={"in": text}, shell="%KUMI% <in"))
    return rows


def llm_c(magic=20240520, version=1, count=1000, tokens=1000, value=1):
    return struct.pack("<256i", magic, version, *([count if -2**31 <= count < 2**31 else -1] + [0] * 253)) + struct.pack("<H", value) * tokens


def text_data():
    data = lambda name: ("train", "config.json", "--out", "o", *FEW, "--set", f"data.train={name}")
    files = {
        "a.txt": (("no bytes", b"", 3), ("one byte", b"x", 3), ("NULs", bytes(5000), 0), ("noise", bytes(range(256)) * 50, 0)),
        "a.bin": (("no bytes", b"", 3), ("100 bytes", bytes(100), 3), ("another magic", llm_c(magic=7), 3), ("version 9", llm_c(version=9), 3), ("more tokens than bytes", llm_c(count=10**6), 3), ("a negative count", llm_c(count=-5), 3),
                  ("tokens beyond the vocabulary", llm_c(value=999), 3), ("no tokens", llm_c(count=0, tokens=0), 3)),
        "a.jsonl": (("no bytes", b"", 3), ("text", b"x\n", 3), ("numbers", b"1\n2\n", 3), ("arrays", b"[1]\n", 3), ("empty objects", b"{}\n" * 9, 3), ("ids of text", b'{"input_ids":["a"]}\n', 3), ("negative ids", b'{"input_ids":[-1,2,3]}\n' * 9, 3),
                    ("ids of 2^40", b'{"input_ids":[1099511627776]}\n', 3), ("fractions", b'{"input_ids":[1.5,2]}\n', 3), ("fewer labels", b'{"input_ids":[1,2,3],"labels":[1]}\n', 3), ("a deep line", b'{"input_ids":' + b"[" * 100000 + b"\n", 3),
                    ("a line of 20 MB", b'{"input_ids":[' + b"1," * 10**7 + b"1]}\n", (0, 3)), ("NULs", b"\0" * 1000 + b"\n", 3), ("a cut line", b'{"input_ids":[1,2', 3), ("no ids", b'{"input_ids":[]}\n' * 99, 3), ("invalid UTF-8", b'{"\xff":1}\n', 3)),
    }
    rows = [Row(f"data: {name} in {file}", codes, *data(file), files={file: content}) for file, table in files.items() for name, content, codes in table]
    rows += [Row(f"data: {path}", (2, 3), *data(path)) for path in ("nowhere", "*.nothing", "/", "/dev/zero", "/dev/full", "[]", '[""]', "{a,b", "x" * 5000, "/proc/self/mem", '["text","nowhere"]')]
    rows.append(Row("data: a FIFO", (2, 3), *data("fifo.txt"), files={"fifo.txt": "FIFO"}))
    rows.append(Row("data: /dev/null", (2, 3), *data("/dev/null")))
    pairs = lambda: {"model": PAIRS, "data": {"kind": "parallel", "train": "a.en", "train_target": "a.ja", "tokenizer": "word", "max_source_len": 12, "max_target_len": 12, "val_fraction": 0.1}, "train": {"global_batch": 2, "steps": 2}}
    for name, en, ja in (("of unequal length", "a\nb\n", "a\n"), ("of no bytes", "", ""), ("of blank lines", "\n" * 50, "\n" * 50), ("that are no UTF-8", b"\xff\n" * 20, b"a\n" * 20), ("of NULs", b"a\0b\n" * 20, b"a\n" * 20),
                         ("with a line of 20 MB", b"a " * 10**7 + b"\n", b"a\n"), ("of one word of 5 MB", b"a" * 5 * 10**6 + b"\n" * 1, b"a\n")):
        rows.append(Row(f"pairs {name}", (0, 3) if name == "of NULs" else BAD, "train", "p.json", "--out", "o", *FEW, files={"p.json": pairs, "a.en": en, "a.ja": ja}))
    return rows


def npy(header_text, data=b"", version=1):
    text = header_text.encode()
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H", len(text) & 65535) + text + data


def described(shape="(8, 4)", descr="'|u1'", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def arrays():
    labels = npy(described("(8,)"), bytes(8))
    config = {"model": MLP, "data": {"kind": "npy", "train": "a.npy", "train_labels": "b.npy"}, "train": {"global_batch": 2, "steps": 2}}
    table = {
        "no bytes": b"", "no magic": b"x" * 200, "version 9": npy(described(), bytes(32), 9), "a header that is cut": b"\x93NUMPY\1\0\xff\xff{'descr", "a header of noise": npy("\xff" * 100), "an empty header": npy(""), "a shape of 2^63": npy(described("(9223372036854775807, 4)")),
        "a shape that overflows": npy(described("(4294967296, 4294967296, 4)"), bytes(64)), "a negative shape": npy(described("(-8, 4)"), bytes(32)), "no shape": npy(described("()"), bytes(32)), "a shape of 20": npy(described("(" + "1, " * 20 + ")"), bytes(32)),
        "Fortran order": npy(described(order="True"), bytes(32)), "objects": npy(described(descr="'|O'"), bytes(256)), "big endian": npy(described(descr="'>f4'"), bytes(128)), "cut": npy(described(), bytes(5)), "zero rows": npy(described("(0, 4)")), "code": npy("__import__('os').system('touch hacked')\n"),
        "parentheses": npy("(" * 4000),
    }
    rows = [Row(f"npy: {name}", INPUT, "train", "n.json", "--out", "o", *FEW, files={"n.json": config, "a.npy": data, "b.npy": labels}) for name, data in table.items()]
    for name, data in (("of another number", npy(described("(3,)"), bytes(3))), ("beyond the classes", npy(described("(8,)"), b"\xff" * 8)), ("negative", npy(described("(8,)", "'<i8'"), b"\xff" * 64)), ("of fractions", npy(described("(8,)", "'<f4'"), bytes(32)))):
        rows.append(Row(f"npy: labels {name}", INPUT, "train", "n.json", "--out", "o", *FEW, files={"n.json": config, "a.npy": npy(described(), bytes(32)), "b.npy": data}))
    idx = {"model": MLP | {"input": [2, 2, 1]}, "data": {"kind": "idx", "train": "i.idx", "train_labels": "l.idx"}, "train": {"global_batch": 2, "steps": 2}}
    good = struct.pack(">4I", 0x803, 4, 2, 2) + bytes(16)
    for name, data in (("no bytes", b""), ("another magic", b"\1\2\3\4" + bytes(60)), ("a size of 2^32 - 1", struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1)), ("cut", good[:-3]), ("longer", good + b"x"), ("floats", struct.pack(">4I", 0xd03, 4, 2, 2) + bytes(64)),
                       ("200 dimensions", b"\0\0\x08\xc8" + struct.pack(">200I", *[1] * 200))):
        rows.append(Row(f"idx: {name}", INPUT, "train", "i.json", "--out", "o", *FEW, files={"i.json": idx, "i.idx": data, "l.idx": struct.pack(">2I", 0x801, 4) + bytes(4)}))
    cifar = {"model": RESNET | {"image_size": 32, "num_classes": 10}, "data": {"kind": "cifar10", "train": "c.bin"}, "train": {"global_batch": 2, "steps": 2}}
    for name, data in (("no bytes", b""), ("a byte more", bytes(3073 * 4 + 1)), ("labels beyond the classes", b"\xff" * 3073 * 8)):
        rows.append(Row(f"cifar10: {name}", INPUT, "train", "c.json", "--out", "o", *FEW, files={"c.json": cifar, "c.bin": data}))
    return rows


def png(width=8, height=8, data=None, kind=2):
    chunk = lambda name, body: struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    rows = data if data is not None else (b"\0" + bytes(3 * width)) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def images():
    config = {"model": RESNET, "data": {"kind": "folder", "train": "im", "val_fraction": 0}, "train": {"global_batch": 2, "steps": 2}}
    good = png()
    table = {
        "no bytes": b"", "text": b"hello", "cut": good[:40], "a flipped bit": good[:50] + bytes((good[50] ^ 4,)) + good[51:], "2^31 - 1 pixels wide": png(2**31 - 1, 1, b"\0"), "sides of 16,384 in a few bytes": png(16384, 16384, bytes(10**6)),
        "a bomb": png(16384, 4096, bytes((3 * 16384 + 1) * 4096)), "no width": png(0, 8), "a colour type unknown": png(kind=99), "a palette without one": png(kind=3), "a JPEG's first bytes": b"\xff\xd8\xff\xe0" + bytes(100),
        "a JPEG of 65,535": b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\x03\x01\x11\0\x02\x11\0\x03\x11\0\xff\xd9", "endless JPEG markers": b"\xff\xd8" + b"\xff" * 10**6,
    }
    rows = []
    for name, data in table.items():
        files = {f"im/{'ab'[i % 2]}/{i}.png": data if i == 2 else good for i in range(6)}
        rows.append(Row(f"image: {name}", (0,) if name == "a bomb" else INPUT, "train", "im.json", "--out", "o", *FEW, files=files | {"im.json": config}, needs=has_png))
    rows.append(Row("image: a FIFO", INPUT, "train", "im.json", "--out", "o", *FEW, files={"im/a/0.png": good, "im/b/0.png": "FIFO", "im/a/1.png": good, "im/b/1.png": good, "im.json": config}, needs=has_png))
    for name, files in (("empty", {"im/readme": ""}), ("of one file", {"im": "x"}), ("of an empty class", {"im/a/0.png": good, "im/b/x.txt": ""})):
        rows.append(Row(f"a folder of images: {name}", INPUT, "train", "im.json", "--out", "o", *FEW, files=files | {"im.json": config}))
    return rows


def has_png(bench):
    if not hasattr(bench, "png"):
        import subprocess
        bench.png = b"libpng  1" in subprocess.run([bench.kumi, "info"], capture_output=True, check=False).stdout
    return bench.png


def tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as t:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind
            if kind == tarfile.SYMTYPE:
                info.size, info.linkname = 0, "/etc/passwd"
            t.addfile(info, io.BytesIO(data) if info.size else None)
    return out.getvalue()


def resized(data, field):
    """The first header's size field, and its checksum anew."""
    h = bytearray(data)
    h[124:136] = field
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h[:512])
    return bytes(h)


def shards():
    f = tarfile.REGTYPE
    good = [(f"{i}.{x}", png() if x == "png" else b"%d" % (i % 2), f) for i in range(6) for x in ("png", "cls")]
    whole = tar(good)
    table = {
        "no bytes": b"", "noise": bytes(range(256)) * 40, "zeros": bytes(10240), "cut in a header": whole[:700], "cut in a member": whole[:512 * 3 + 100], "a wrong checksum": whole[:148] + b"0000000\0" + whole[156:],
        "a size of 2^63": resized(whole, b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7), "a negative size": resized(whole, b"\xff" * 12), "a size that is no number": resized(whole, b"zzzzzzzzzzz\0"), "a size beyond the file": resized(whole, b"77777777777\0"),
        "paths upwards": tar([("../../" + n, d, k) for n, d, k in good]), "absolute paths": tar([("/" + n, d, k) for n, d, k in good]), "links": tar([(n, d, tarfile.SYMTYPE) for n, d, k in good]), "a class that is no number": tar([(n, b"cat" if n.endswith("cls") else d, k) for n, d, k in good]),
        "a class of 2^70": tar([(n, b"1180591620717411303424" if n.endswith("cls") else d, k) for n, d, k in good]), "a negative class": tar([(n, b"-1" if n.endswith("cls") else d, k) for n, d, k in good]), "no classes": tar([m for m in good if m[0].endswith("png")]),
        "long names": tar([("d" * 200 + "/" + n, d, k) for n, d, k in good]), "a name of 1 MB": tar([("d" * 10**6 + n, d, k) for n, d, k in good[:2]]), "devices": tar([(n, b"", tarfile.CHRTYPE) for n, d, k in good]), "a pax record of 2^63": tar([("x", b"9223372036854775807 path=a\n", b"x")] + good),
        "a pax size": tar([("x", b"28 size=9223372036854775807\n", b"x")] + good), "twice the same names": tar(good + good), "100 empty members": tar([(f"{i}.png", b"", f) for i in range(100)]),
    }
    config = {"model": RESNET, "data": {"kind": "tar", "train": "a.tar", "val_fraction": 0}, "train": {"global_batch": 2, "steps": 2}}
    return [Row(f"tar: {name}", (0, 3), "train", "t.json", "--out", "o", *FEW, files={"t.json": config, "a.tar": data}, needs=has_png) for name, data in table.items()]


def rows(bench):
    del bench
    return weights() + tokenizers() + text_data() + arrays() + images() + shards()
