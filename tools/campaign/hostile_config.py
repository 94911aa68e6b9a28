# SPDX-License-Identifier: Apache-2.0
"""Configurations and models: text that is none, nonsense for every key, sizes beyond all machines."""
import json
import subprocess

from hostile import ANY, FEW, TRAIN, Row, changed

DEEP = 100000
LONG = "x" * 10000000
NONSENSE = ("-1", "0", "1", "9223372036854775807", "-9223372036854775808", "1e308", "-1e308", "1e-320", "NaN", '"NaN"', '"\\u0000"', '""', '"x"', "null",
            "true", "[]", "[[]]", "[null]", "{}", '{"x":1}', '["x",-1]', "[" * 3000, "/dev/null", "é", "\\", "'", "%s%n", "..")
CONFIG_ARGV = (("train", "a.json", "--out", "o", *FEW), ("plan", "a.json"))


def texts():
    """Files that are no configuration: exit 2 (3 where the data of one that reads are missing)."""
    good = json.dumps(changed())
    table = {
        "empty": "", "blank": " \n", "a brace": "{", "two objects": "{}{}", "an array": "[]", "null": "null", "a number": "3", "a string": '"x"', "nothing in it": "{}",
        "NUL inside": good[:40] + "\0" + good[40:], "NUL behind": good + "\0", "invalid UTF-8 in a key": b'{"mod\xffel":{}}', "invalid UTF-8 in a value": b'{"data":{"train":"\xc3\x28"}}',
        "overlong UTF-8": b'{"data":{"train":"\xc0\x80"}}', "a byte order mark": b"\xef\xbb\xbf" + good.encode(), "UTF-16": good.encode("utf-16"),
        "a key twice": '{"model":{},"model":{}}', "a key twice inside": '{"train":{"steps":1,"steps":2}}', "deep arrays": "[" * DEEP, "deep objects": '{"a":' * DEEP,
        "a deep value": '{"model":{"model_type":' + "[" * DEEP + "]" * DEEP + "}}", "a long key": '{"' + LONG + '":1}', "a long model_type": '{"model":{"model_type":"' + LONG + '"},"data":{"train":"text"}}',
"a number beyond doubles": '{"train":{"steps":1e400}}', "a number of 5,000 digits": '{"train":{"steps":' + "9" * 5000 + "}}",
        "NaN": '{"optimizer":{"lr":NaN}}', "Infinity": '{"optimizer":{"lr":-Infinity}}', "comments": "// no\n" + good, "a trailing comma": good[:-1] + ",}", "single quotes": good.replace('"', "'"),
        "control characters": '{"model":{"model_type":"gpt2\x01"}}', "half a surrogate": '{"data":{"train":"\\ud800"}}', "an escaped NUL": '{"data":{"train":"text\\u0000x"}}',
        "a NUL in a key": '{"mo\\u0000del":{}}', "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\xff" * 50, "an ELF file": b"\x7fELF\2\1\1" + bytes(4000), "no model": '{"data":{"train":"text"}}',
        "no data": '{"model":{"model_type":"gpt2"}}', "model an array": '{"model":[],"data":{"train":"text"}}', "model a string": '{"model":"gpt2","data":{"train":"text"}}', "model null": '{"model":null,"data":{"train":"text"}}',
        "100,000 keys": json.dumps({f"k{i}": i for i in range(100000)}),
    }
    rows = [Row(f"configuration: {name}", (2, 3), each=CONFIG_ARGV, files={"a.json": text}) for name, text in table.items()]
    rows.append(Row("configuration: 100,000 files", ANY, each=CONFIG_ARGV, files={"a.json": lambda: changed(data={"train": ["text"] * 100000})}, deadline_s=120))
    rows.append(Row("configuration: a long path", (0, 2, 3), each=CONFIG_ARGV, files={"a.json": lambda: changed(data={"train": LONG})}, deadline_s=120)) # a plan reads no data
    rows += [Row(f"section {s} is {v}", (2,), each=CONFIG_ARGV, files={"a.json": changed(**{s: json.loads(v)})})
             for s, v in (("train", "[]"), ("train", '"x"'), ("data", "3"), ("optimizer", "[1]"), ("checkpoint", "true"), ("parallel", '{"zero":{}}'), ("memory", "[[]]"), ("precision", "0"))]
    rows += [Row(f"configuration: {path}", (2,), "train", path, "--out", "o") for path in ("nowhere", ".", "/dev/null", "/dev/zero", "/proc/self/mem", "/dev/stdin", "")]
    rows.append(Row("configuration: a FIFO", (2,), "train", "a.json", "--out", "o", files={"a.json": "FIFO"}))
    return rows


def keys(bench):
    """Each key of the key table with each nonsense value: refused, or trained with."""
    text = subprocess.run([bench.kumi, "help", "config"], capture_output=True, check=True, text=True).stdout
    names = sorted({line.split()[0] for line in text.split("\n") if line.startswith("  ") and "." in line.split()[0]})
    rows = []
    for name in names:
        each = [("train", "config.json", "--out", f"o{i}", *FEW, "--set", f"{name}={v}") for i, v in enumerate(NONSENSE)]
        rows.append(Row(f"key {name}", ANY, each=each, shell="ulimit -v 16000000" if not bench.is_sanitized else None))
    return rows


GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 32, "vocab_size": 256}
BERT = {"model_type": "bert", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 32, "vocab_size": 256}
RESNET = {"model_type": "resnet", "depth": 8, "num_classes": 2, "image_size": 8}
MLP = {"model_type": "mlp", "input": [4], "hidden": [4], "num_classes": 2}
PAIRS = {"model_type": "transformer", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "ffn_dim": 16, "max_positions": 16}
HUGE = (10**9, 2**31, 2**40, 2**63 - 1)


def models():
    """Sizes and words of models: refused for what they are, or for memory."""
    table = []
    for base, key, values in (
            (GPT2, "n_layer", (0, -1, 100000, *HUGE)), (GPT2, "n_head", (0, -2, 3, *HUGE)), (GPT2, "n_embd", (0, -16, 2**31, 2**62)), (GPT2, "vocab_size", (0, -1, 10**9, 2**31, 2**62)),
            (GPT2, "n_positions", (0, -1, 2**31, 2**62)), (GPT2, "n_inner", (-1, 2**62)), (GPT2, "activation_function", ("", "x" * 1000, 3)), (GPT2, "layer_norm_epsilon", (-1, "x")),
            (GPT2, "attn_pdrop", (-0.5, 1.0, 2, 1e308)), (GPT2, "model_type", ("gpt3", "", 7, None)), (GPT2, "initializer_range", (-1, "x")),
            (LLAMA, "num_hidden_layers", (0, 100000, 10**9)), (LLAMA, "num_key_value_heads", (0, 3, -1, 10**9)), (LLAMA, "head_dim", (0, 3, -4, 2**40)), (LLAMA, "hidden_size", (0, 15, 2**40)),
            (LLAMA, "rope_theta", (0, -1, "x")), (LLAMA, "rope_scaling", ({"rope_type": "x"}, {"rope_type": "linear"}, {"rope_type": "linear", "factor": 0}, [], 3)),
            (BERT, "num_hidden_layers", (100000, 10**9)), (BERT, "type_vocab_size", (-1, 2**62)), (RESNET, "depth", (0, 9, -2, 10**9 + 2, 6 * 10**5 + 2)), (RESNET, "depths", ([], [0], [10**9], [1] * 1000, "x", [-1])),
            (RESNET, "image_size", (0, -1, 2**40)), (RESNET, "num_classes", (0, -1, 2**62)), (RESNET, "width", (0, -1, 2**40)), (MLP, "hidden", ([0], [-1], [2**62], [2**31, 2**31], [4] * 100000, "x", [[4]])),
            (MLP, "input", ([], [0], [-1], [2**62], [2**31, 2**31, 2**31], [1] * 9, "x")), (PAIRS, "encoder_layers", (-1, 10**9)), (PAIRS, "decoder_layers", (-1, 10**9)), (PAIRS, "num_heads", (0, 3, 2**40))):
        for v in values:
            table.append((base, key, v))
    rows = []
    for base, key, v in table:
        shown = json.dumps(v)
        config = changed(model=None) | {"model": base | {key: v}}
        if base in (RESNET, MLP):
            config["data"] = {"kind": "npy", "train": "a.npy", "train_labels": "b.npy"}
        if base is PAIRS:
            config["data"] = {"kind": "parallel", "train": "text", "train_target": "text", "tokenizer": "word"}
        codes = ANY if v == 10**9 and key == "vocab_size" else (2, 3, 12, 13) # that many bytes may be there
        rows.append(Row(f"model {base['model_type']}: {key} {shown[:30]}", codes, each=CONFIG_ARGV, files={"a.json": config}))
    rows += [
        Row("plan of 400 layers", (0,), "plan", "config.json", "--set", "model.n_layer=400", deadline_s=120),
        Row("plan of a ResNet of 1,202 layers", (0,), "plan", "a.json", files={"a.json": {"model": RESNET | {"depth": 1202, "image_size": 32}, "data": {"kind": "cifar10", "train": "none"}}}),
        Row("plan of 10,000 layers", (0, 2), "plan", "config.json", "--set", "model.n_layer=10000", deadline_s=300),
        Row("a batch of 10^9", (2, 3, 13), *TRAIN, "--set", "train.global_batch=1000000000"),
        Row("65,536 shards", (0, 2, 3, 13), *TRAIN, "--set", "train.virtual_shards=65536", "--set", "train.global_batch=65536"),
        Row("samples longer than the text", (2, 3), *TRAIN, "--set", "data.seq_len=65536", "--set", "model.n_positions=65536"),
        Row("learning rate 1e30", (9,), *TRAIN, "--set", "optimizer.lr=1e30", "--set", "train.clip_norm=0", "--until", "40"),
        Row("300 groups", ANY, *TRAIN, "--set", "optimizer.groups=" + json.dumps([{"match": f"x{i}*", "lr_mult": 1} for i in range(300)])),
        Row("a pattern of 10,000 stars", ANY, *TRAIN, "--set", "train.freeze=" + "*a" * 10000),
    ]
    return rows


def deepspeed():
    table = {
        "empty": "", "no object": "[]", "deep": "{a:" * DEEP, "unquoted": "{train_batch_size: }", "negative batch": {"train_batch_size": -8}, "another batch": {"train_batch_size": 7},
        "batch 2^63": '{"train_batch_size": 9223372036854775808}', "stage 9": {"zero_optimization": {"stage": 9}}, "stage -1": {"zero_optimization": {"stage": -1}}, "stage a list": {"zero_optimization": {"stage": []}},
        "optimizer nonsense": {"optimizer": {"type": "x" * 10000}}, "parameters nonsense": {"optimizer": {"type": "Adam", "params": {"lr": "x", "betas": [1]}}}, "scheduler nonsense": {"scheduler": {"type": 3}},
        "loss scale NaN": '{"fp16": {"enabled": true, "loss_scale": NaN}}', "offload nowhere": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/proc/x"}}},
        "clip negative": {"gradient_clipping": -1}, "NUL": b'{"train\0batch_size": 8}', "invalid UTF-8": b'{"\xff\xfe": 8}', "a long key": '{"' + LONG + '": 1}',
    }
    rows = [Row(f"deepspeed: {name}", (2, 3, 5), *TRAIN, "--deepspeed", "ds.json", "--strict", files={"ds.json": text}) for name, text in table.items()]
    rows.append(Row("deepspeed: nowhere", (2, 3), *TRAIN, "--deepspeed", "nowhere"))
    rows.append(Row("deepspeed: explained nonsense", (2,), "train", "config.json", "--explain-deepspeed=x"))
    return rows


def rows(bench):
    return texts() + models() + deepspeed() + keys(bench)
