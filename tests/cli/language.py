# SPDX-License-Identifier: Apache-2.0
"""GPT-2's held-out loss by hand, in f64 and plain loops, and what a training with frozen parameters leaves behind.

    language.py loss DIR TEXT STRIDE [SEPARATOR]   prints mean loss and number of targets, by Hugging Face's loop over windows
    language.py texts KUMI DIR                     writes train.txt as documents of text and of tokens, and as one text
    language.py frozen BEFORE AFTER STATE PATTERN..  tensors that match stay bit for bit, all others move, and they alone have optimizer state
"""
import fnmatch, json, math, struct, subprocess, sys


def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k.removeprefix("transformer."): (v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in header.items()}


def floats(tensor):
    shape, data = tensor
    flat = list(struct.unpack(f"<{len(data) // 4}f", data))
    return flat if len(shape) == 1 else [flat[i:i + shape[1]] for i in range(0, len(flat), shape[1])]


def norm(x, gain, bias, eps):
    mean = sum(x) / len(x)
    rstd = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + eps)
    return [(v - mean) * rstd * g + b for v, g, b in zip(x, gain, bias)]


def conv1d(x, w, b):
    return [b[j] + sum(x[i] * w[i][j] for i in range(len(x))) for j in range(len(b))]


def gelu_new(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(qkv, heads, segment):
    width = len(qkv[0]) // 3 // heads
    out = []
    for i in range(len(qkv)):
        row = []
        for h in range(heads):
            at = lambda j, part: qkv[j][(part * heads + h) * width:(part * heads + h + 1) * width]
            keys = [j for j in range(i + 1) if segment[j] == segment[i]]
            p = [math.exp(sum(a * b for a, b in zip(at(i, 0), at(j, 1))) / math.sqrt(width)) for j in keys]
            row += [sum(x * at(j, 2)[e] for x, j in zip(p, keys)) / sum(p) for e in range(width)]
        out.append(row)
    return out


def losses(w, c, tokens, targets, segment):
    eps = c.get("layer_norm_epsilon", 1e-5)
    x = [[a + b for a, b in zip(w["wte.weight"][t], w["wpe.weight"][i])] for i, t in enumerate(tokens)]
    for l in range(c["n_layer"]):
        get = lambda name: (w[f"h.{l}.{name}.weight"], w[f"h.{l}.{name}.bias"])
        o = attention([conv1d(norm(r, *get("ln_1"), eps), *get("attn.c_attn")) for r in x], c["n_head"], segment)
        x = [[a + b for a, b in zip(r, conv1d(y, *get("attn.c_proj")))] for r, y in zip(x, o)]
        f = [[gelu_new(v) for v in conv1d(norm(r, *get("ln_2"), eps), *get("mlp.c_fc"))] for r in x]
        x = [[a + b for a, b in zip(r, conv1d(y, *get("mlp.c_proj")))] for r, y in zip(x, f)]
    out = []
    for r, t in zip(x, targets):
        y = norm(r, w["ln_f.weight"], w["ln_f.bias"], eps)
        logits = [sum(a * b for a, b in zip(y, e)) for e in w["wte.weight"]]
        out.append(math.log(sum(math.exp(v) for v in logits)) - logits[t])
    return out


def held_out(folder, text, stride, separator):
    c = json.load(open(folder + "/config.json"))
    w = {k: floats(v) for k, v in read(folder + "/model.safetensors").items()}
    data, size, seen, total, count = open(text, "rb").read(), c["n_positions"], 0, 0.0, 0
    for begin in range(0, len(data), stride):
        end = min(begin + size, len(data) - 1)  # of the inputs; targets are one further
        tokens, segment = data[begin:end], [0]
        for t in tokens[:-1]:
            segment.append(segment[-1] + (t == separator))
        some = losses(w, c, tokens, data[begin + 1:end + 1], segment)[seen - end:]
        total, count, seen = total + sum(some), count + len(some), end
        if end == len(data) - 1:
            break
    print(f"{total / count:.9f} {count}")


def frozen(before, after, state, patterns):
    a, b, s = read(before), read(after), read(state)
    assert a.keys() == b.keys() and len(a) > 5
    n = 0
    for name in a:
        is_frozen = any(fnmatch.fnmatchcase(name, p) for p in patterns)
        assert (a[name] == b[name]) == is_frozen, name
        assert (name + ".exp_avg" in s) != is_frozen, name
        n += is_frozen
    assert 0 < n < len(a) and len(s) == 2 * (len(a) - n), (n, len(s))


def texts(kumi, folder):
    """train.txt's beginning as documents of text, of tokens, and as one text."""
    text = open(folder + "/train.txt").read()
    parts = [text[i:i + 300] for i in range(0, 3600, 300)]
    with open(folder + "/texts.jsonl", "w") as docs, open(folder + "/ids.jsonl", "w") as tokens:
        for i, part in enumerate(parts):
            encode = [kumi, "tokenizer", "encode", "--tokenizer", folder + "/pair"]
            ids = subprocess.run(encode, input=part, capture_output=True, text=True, check=True).stdout.split()
            docs.write(json.dumps({"id": i, "text": part}) + "\n")
            tokens.write(json.dumps({"input_ids": [*map(int, ids), 656]}) + "\n")
    open(folder + "/texts.txt", "w").write("".join(part + "<|endoftext|>" for part in parts))


if sys.argv[1] == "loss":
    held_out(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]) if len(sys.argv) > 5 else -1)
elif sys.argv[1] == "texts":
    texts(*sys.argv[2:])
else:
    frozen(*sys.argv[2:5], sys.argv[5:])
