#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Transformer of configs/enja.json in PyTorch: a peer of bench/performance.py, and of a training's loss and BLEU.

    pytorch_enja.py CONFIG [--data DIR] [--shapes 204x7x10,170x8x12] --procs 2 --threads 1 --dtype bf16 --steps 40 [--compile]
    pytorch_enja.py CONFIG [--data DIR] [--shapes ..] --train LOG.jsonl --steps 3300 [--eval-every 331] [--test test.en test.ja]

The first prints one JSON line with target tokens per second, padding not counted, after a step of every shape; the batches are made before. The second trains and
appends a line for every --log-every steps, and loss and greedy BLEU of the development set; at the end those of both sets, by the
weights and, with train.ema, by their average; translations of --test go to LOG.jsonl.txt. Model, first values' distributions, label
smoothing, vocabularies, Adam, Noam, train.ema are the configuration's; batches follow kumi's rule (docs/reference/text.md) over --shapes, which
`kumi data verify CONFIG` prints; without --shapes there are as many of equal counts under the same budget of tokens. With
--procs > 1 it is DistributedDataParallel over Gloo; each process has its part of a batch's rows.
"""
import argparse
import collections
import copy
import json
import math
import os
import random
import statistics
import time

import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

PAD, START, END, UNKNOWN, IGNORED = 0, 1, 2, 3, -100


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["d_model"]
        self.heads, self.dropout = c["num_heads"], c.get("attention_dropout", 0.0)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, keys, mask):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.q_proj(x)), split(self.k_proj(keys)), split(self.v_proj(keys)), attn_mask=mask,
                                           dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, c, is_decoder):
        super().__init__()
        d = c["d_model"]
        self.norm_first, self.drop = c.get("norm_first", False), nn.Dropout(c.get("dropout", 0.1))
        self.attn = nn.ModuleList(Attention(c) for _ in range(1 + is_decoder))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 + is_decoder))
        self.fc1, self.fc2 = nn.Linear(d, c["ffn_dim"]), nn.Linear(c["ffn_dim"], d)
        self.ffn_drop = nn.Dropout(c.get("activation_dropout", 0.0))

    def add(self, x, norm, f):
        return x + self.drop(f(norm(x))) if self.norm_first else norm(x + self.drop(f(x)))

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.add(x, self.norm[0], lambda y: self.attn[0](y, y, mask))
        if memory is not None:
            x = self.add(x, self.norm[1], lambda y: self.attn[1](y, memory, memory_mask))
        return self.add(x, self.norm[-1], lambda y: self.fc2(self.ffn_drop(F.relu(self.fc1(y)))))


class Transformer(nn.Module):
    def __init__(self, c, src_vocab, tgt_vocab):
        super().__init__()
        d = c["d_model"]
        self.d, self.drop = d, nn.Dropout(c.get("dropout", 0.1))
        self.src, self.tgt = nn.Embedding(src_vocab, d), nn.Embedding(tgt_vocab, d)
        self.encoder = nn.ModuleList(Layer(c, False) for _ in range(c["encoder_layers"]))
        self.decoder = nn.ModuleList(Layer(c, True) for _ in range(c["decoder_layers"]))
        self.norm = nn.ModuleList(nn.LayerNorm(d) if c.get("norm_first") else nn.Identity() for _ in range(2))
        angle = torch.arange(c["max_positions"])[:, None] * 10000.0 ** (-2.0 * (torch.arange(d) // 2) / d)
        self.register_buffer("waves", torch.where(torch.arange(d) % 2 == 0, angle.sin(), angle.cos()))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                wide = m.weight.shape[0] + m.weight.shape[1]
                nn.init.normal_(m.weight, std=math.sqrt(2 / wide))
                nn.init.zeros_(m.bias)
            if isinstance(m, nn.Embedding):
                nn.init.normal_(m.weight, std=d ** -0.5)

    def embed(self, table, ids):
        return self.drop(table(ids) * math.sqrt(self.d) + self.waves[:ids.shape[1]])

    def encode(self, src):
        mask = (src != PAD)[:, None, None, :]
        x = self.embed(self.src, src)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.norm[0](x), mask

    def decode(self, tgt, memory, memory_mask):
        t = tgt.shape[1]
        mask = (tgt != PAD)[:, None, None, :] & torch.ones(t, t, dtype=torch.bool).tril()
        x = self.embed(self.tgt, tgt)
        for layer in self.decoder:
            x = layer(x, mask, memory, memory_mask)
        return F.linear(self.norm[1](x), self.tgt.weight)

    def forward(self, src, tgt, targets, smoothing):
        logits = self.decode(tgt, *self.encode(src))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing,
                               reduction="sum")


# -- data

def vocabulary(lines, least):
    counts = collections.Counter(w for line in lines for w in line)
    words = sorted((w for w, n in counts.items() if n >= least), key=lambda w: (-counts[w], w.encode()))
    return {w: 4 + i for i, w in enumerate(words)}


def read_lines(path):
    return [line.split() for line in open(path, encoding="utf-8")]


class Data:
    def __init__(self, c, folder, test):
        names = {k: os.path.join(folder, os.path.basename(c[k])) if folder else c[k]
                 for k in ("train", "train_target", "val", "val_target")}
        names.update(zip(("test", "test_target"), test or ()))
        text = {k: read_lines(path) for k, path in names.items()}
        self.vocab = [vocabulary(text[k], c.get("min_frequency", 1)) for k in ("train", "train_target")]
        self.words = ["<pad>", "<s>", "</s>", "<unk>"] + list(self.vocab[1])
        most = c["max_source_len"], c["max_target_len"]

        def pairs(a, b):
            ids = [[[v.get(w, UNKNOWN) for w in s] for s in text[k]] for v, k in zip(self.vocab, (a, b))]
            return [(s, t) for s, t in zip(*ids) if 0 < len(s) <= most[0] and 0 < len(t) <= most[1]]
        self.train = pairs("train", "train_target")
        self.held = {k: (pairs(k, k + "_target"), text[k + "_target"]) for k in ("val", "test") if k in text}
        for k, (kept, references) in self.held.items():
            if len(kept) != len(references):
                raise SystemExit(f"{names[k]}: {len(references) - len(kept)} pairs are empty or over-long")


def own_shapes(pairs, n, budget, multiple):
    ordered = sorted(pairs, key=lambda p: max(len(p[0]), len(p[1]) + 1))
    shapes, s, t = [], 0, 0
    for i in range(n):
        part = ordered[i * len(pairs) // n:(i + 1) * len(pairs) // n]
        s, t = max(s, max(len(p[0]) for p in part)), max(t, max(len(p[1]) + 1 for p in part))
        shapes.append((budget // max(s, t) // multiple * multiple, s, t))
    return shapes


def batches(pairs, shapes, rng):
    """An epoch: a pair goes to the first shape that holds it, what is left over to the next; the last batch may be short."""
    pools = [[] for _ in shapes]
    for p in pairs:
        pools[next(i for i, (_, s, t) in enumerate(shapes) if len(p[0]) <= s and len(p[1]) < t)].append(p)
    left, out = [], []
    for pool, (rows, s, t) in zip(pools, shapes):
        rng.shuffle(pool)
        pool = left + pool
        n = len(pool) // rows * rows
        out += [(pool[i:i + rows], s, t) for i in range(0, n, rows)]
        left = pool[n:]
    rng.shuffle(out)
    return out + ([(left, *shapes[-1][1:])] if left else [])


def padded(lists, n, fill=PAD):
    return torch.tensor([x + [fill] * (n - len(x)) for x in lists])


def ports(batch):
    pairs, s, t = batch
    return (padded([a for a, _ in pairs], s), padded([[START] + b for _, b in pairs], t),
            padded([b + [END] for _, b in pairs], t, IGNORED))


# -- evaluation

def bleu(hypotheses, references):
    """sacreBLEU's corpus BLEU, tok none, smooth exp."""
    match, total, lengths, smooth, logs = [0] * 4, [0] * 4, [0, 0], 1.0, 0.0
    for h, r in zip(hypotheses, references):
        lengths = [lengths[0] + len(h), lengths[1] + len(r)]
        for n in range(4):
            grams = [collections.Counter(tuple(x[i:i + n + 1]) for i in range(len(x) - n)) for x in (h, r)]
            match[n] += sum((grams[0] & grams[1]).values())
            total[n] += max(len(h) - n, 0)
    for m, n in zip(match, total):
        if n == 0:
            return 0.0
        if m == 0:
            smooth *= 2
        logs += math.log(m / n if m else 1 / (smooth * n)) / 4
    return 100 * math.exp(logs + min(0.0, 1 - lengths[1] / max(lengths[0], 1)))


@torch.no_grad()
def evaluate(model, data, split, most, autocast):
    """Loss a token, BLEU and the translations."""
    model.eval()
    held, references = data.held[split]
    loss, tokens, made = 0.0, 0, [None] * len(held)
    order = sorted(range(len(held)), key=lambda i: len(held[i][0]))
    for at in range(0, len(order), 100):
        part = order[at:at + 100]
        pairs = [held[i] for i in part]
        src, tgt, targets = ports((pairs, max(len(a) for a, _ in pairs), max(len(b) for _, b in pairs) + 1))
        with autocast():
            loss += float(model(src, tgt, targets, 0.0))
            memory, mask = model.encode(src)
            out = torch.full((len(part), 1), START)
            for _ in range(most):
                out = torch.cat((out, model.decode(out, memory, mask)[:, -1].argmax(-1, keepdim=True)), 1)
                if (out == END).any(1).all():
                    break
        tokens += int((targets != IGNORED).sum())
        for i, row in zip(part, out[:, 1:].tolist()):
            made[i] = [data.words[w] for w in (row[:row.index(END)] if END in row else row)]
    model.train()
    return loss / tokens, bleu(made, references), made


# -- one process

def noam(schedule, step):
    return schedule["d_model"] ** -0.5 * min(step ** -0.5, step * schedule["warmup_steps"] ** -1.5)


def worker(rank, a):
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    c = json.load(open(a.config))
    data, t, o = Data(c["data"], a.data, a.test), c["train"], c["optimizer"]
    budget = c["data"].get("batch_tokens")
    shapes = a.shapes or own_shapes(data.train, c["data"]["shapes"], budget, 2)
    if a.procs > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=a.procs)
    model = Transformer(c["model"], *(4 + len(v) for v in data.vocab))
    step_model = nn.parallel.DistributedDataParallel(model) if a.procs > 1 else model
    run = torch.compile(step_model, dynamic=False) if a.compile else step_model
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=tuple(o["betas"]), eps=o["eps"], fused=True)
    average = copy.deepcopy(model) if t.get("ema") else None
    rng = random.Random(a.seed)

    def autocast():
        return torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16")

    def made(batch):
        """A batch's target tokens, and the process's part of it as tensors."""
        mine = (batch[0][rank::a.procs], *batch[1:]) if a.procs > 1 else batch
        return sum(len(b) + 1 for _, b in batch[0]), ports(mine)

    def step(batch, number):
        tokens, tensors = batch
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = o["lr"] * noam(c["schedule"], number)
        with autocast():
            loss = run(*tensors, t.get("label_smoothing", 0.0)) * (a.procs / tokens)
        loss.backward()
        if t.get("clip_norm", 1.0):
            nn.utils.clip_grad_norm_(model.parameters(), t.get("clip_norm", 1.0))
        optimizer.step()
        if average:
            weights = [list(m.parameters()) for m in (average, model)]
            with torch.no_grad():
                torch._foreach_lerp_(*weights, 1.0 if number == 1 else 1.0 - t["ema"])
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begin, tokens, loss.detach() / a.procs

    def endless():
        while True:
            yield from map(made, batches(data.train, shapes, rng))
    if a.train:
        models = {"weights": model, **({"average": average} if average else {})}
        train(a, endless(), step, models, lambda m, split: evaluate(m, data, split, c["data"]["max_target_len"], autocast))
        return
    for i, shape in enumerate(dict.fromkeys((len(b[0]), *b[1:]) for b in batches(data.train, shapes, random.Random(1)))):
        step(made(next(b for b in batches(data.train, shapes, random.Random(1)) if (len(b[0]), *b[1:]) == shape)), i + 1)
    source = endless()
    ahead = [next(source) for _ in range(a.steps)]
    done = [step(batch, 10 + i) for i, batch in enumerate(ahead)]
    if rank == 0:
        seconds, tokens = sum(d[0] for d in done), sum(d[1] for d in done)
        print(json.dumps({"peer": "pytorch " + torch.__version__, "procs": a.procs, "threads": a.threads, "dtype": a.dtype,
                          "compiled": a.compile, "steps": len(done), "step_ms": 1e3 * statistics.median(d[0] for d in done),
                          "least_ms": 1e3 * min(d[0] for d in done), "most_ms": 1e3 * max(d[0] for d in done), "times_ms": [1e3 * d[0] for d in done],
                          "tokens": tokens / len(done), "shapes": shapes, "tps": tokens / seconds}), flush=True)
    if a.procs > 1:
        torch.distributed.destroy_process_group()


def train(a, source, step, models, look):
    assert a.procs == 1, "a training is one process; give it --threads"
    seconds = 0.0
    with open(a.train, "w") as log:
        for number in range(1, a.steps + 1):
            took, tokens, loss = step(next(source), number)
            seconds += took
            line = {"step": number, "loss": float(loss), "tokens": tokens, "step_ms": 1e3 * took, "seconds": seconds}
            if number % a.eval_every == 0 or number == a.steps:
                line["val_loss"], line["bleu"], _ = look(models["weights"], "val")
            if number % a.log_every == 0 or "bleu" in line:
                log.write(json.dumps(line) + "\n")
                log.flush()
    for name, model in models.items():
        for split in ("val", "test") if a.test else ("val",):
            loss, score, made = look(model, split)
            print(json.dumps({"of": name, "split": split, "loss": loss, "bleu": score, "train_seconds": seconds}), flush=True)
    if a.test:
        with open(a.train + ".txt", "w", encoding="utf-8") as out:
            out.writelines(" ".join(words) + "\n" for words in made)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config")
    p.add_argument("--data", help="folder of the configuration's files, under their names")
    p.add_argument("--shapes", type=lambda x: [tuple(map(int, s.split("x"))) for s in x.split(",")])
    for name, value in dict(procs=1, threads=2, steps=40, seed=1337, port=29517, log_every=20, eval_every=331).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--train", metavar="LOG")
    p.add_argument("--test", nargs=2, metavar=("SOURCE", "REFERENCE"), help="scored at the end of a training")
    a = p.parse_args()
    if a.procs > 1:
        mp.spawn(worker, (a,), a.procs)
    else:
        worker(0, a)


if __name__ == "__main__":
    main()
