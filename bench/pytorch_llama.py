#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Language models on a text of bytes in PyTorch, the peer of configs/llama-tiny.json and configs/bert-tiny.json.

    pytorch_llama.py speed CONFIG --procs 2 --threads 1 --dtype bf16 --steps 40 [--compile]
    pytorch_llama.py train CONFIG --out DIR --procs 2 --threads 1 [--steps N] [--seed S]
    pytorch_llama.py loss CONFIG --weights DIR

Model, batch, optimizer, schedule and text are those of the configuration, so that both learn by one recipe; the order of samples, the masks and the first
values are PyTorch's own. `speed` prints one JSON line with the median of step times on random tokens; `train` writes DIR/metrics.jsonl with the keys of
`kumi train` (a loss is the mean since the line before), which tools/curve.py draws; `loss` is that of a directory of weights on the validation text, as `kumi eval` counts it. With --procs > 1 it is
DistributedDataParallel over Gloo. The models are transformers' where that is installed, or else (Llama, the default rotary positions) that of this file.
"""
import argparse
import json
import math
import os
import socket
import statistics
import time

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

try:
    import transformers
except ImportError:
    transformers = None


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c["hidden_size"])), c["rms_norm_eps"]

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f, self.heads, self.keys = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.width = c.get("head_dim") or d // self.heads
        linear = lambda rows, columns: nn.Linear(rows, columns, bias=False)
        self.q, self.k, self.v = (linear(d, n * self.width) for n in (self.heads, self.keys, self.keys))
        self.o, self.gate, self.up, self.down = linear(self.heads * self.width, d), linear(d, f), linear(d, f), linear(f, d)
        self.before_attention, self.before_mlp = Norm(c), Norm(c)

    def forward(self, x, turn):
        b, t, _ = x.shape
        y = self.before_attention(x)
        q, k, v = (m(y).view(b, t, -1, self.width).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=self.keys < self.heads)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Touvron et al. 2023, with the rotate-half layout."""

    def __init__(self, c):
        super().__init__()
        if c.get("rope_scaling") or c.get("attention_bias") or c.get("mlp_bias") or c["model_type"] != "llama":
            raise SystemExit("no transformers: this model has Llama's default positions and no biases")
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers, self.norm = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"])), Norm(c)
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=c["initializer_range"])
        if c.get("tie_word_embeddings"):
            self.head.weight = self.embed.weight
        d = self.layers[0].width
        angles = torch.outer(torch.arange(c["max_position_embeddings"]).double(), c["rope_theta"] ** (-torch.arange(0, d, 2).double() / d)).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids):
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]

        def turn(x):
            low, high = x.chunk(2, -1)
            return (x * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, turn)
        return self.head(self.norm(x))


def build(c, own):
    if transformers is None or own:
        return Llama(c)
    kind, model = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
                   "bert": (transformers.BertConfig, transformers.BertForMaskedLM)}[c["model_type"]]
    keys = {k: v for k, v in c.items() if k != "model_type"}
    return model(kind(**keys, attn_implementation="sdpa", use_cache=False))


def logits_of(model, ids):
    out = model(ids)
    return out.logits if hasattr(out, "logits") else out


def learning_rate(config, update, n_steps):
    """kumi's linear warm-up, then cosine or linear; updates from 0."""
    o, s = config["optimizer"], config["schedule"]
    warmup, least = s.get("warmup_steps", 0), s.get("min_lr", 0.0)
    if update < warmup:
        return o["lr"] * (update + 1) / (warmup + 1)
    done = min(1, (update - warmup) / max(1, n_steps - warmup))
    if s["type"] not in ("cosine", "linear"):
        raise SystemExit(f"schedule.type: {s['type']}; this peer has cosine and linear")
    return least + (o["lr"] - least) * (0.5 * (1 + math.cos(math.pi * done)) if s["type"] == "cosine" else 1 - done)


class Text:
    """Windows of seq_len bytes; the last val_fraction of the file is for validation."""

    def __init__(self, config):
        d = config["data"]
        text = torch.from_numpy(np.fromfile(d["train"], np.uint8).astype(np.int64))
        n = int((1 - d["val_fraction"]) * len(text))
        self.t, self.parts = d["seq_len"], (text[:n], text[n:])
        self.is_masked, self.mask, self.share = config["model"]["model_type"] == "bert", d.get("mask_token"), d.get("mlm_probability", 0.15)
        self.vocab = config["model"]["vocab_size"]

    def n_samples(self, split):
        return (len(self.parts[split]) - (not self.is_masked)) // self.t

    def read(self, split, samples, generator):
        """Tokens and targets, -100 where nothing is to be learnt."""
        at = samples.view(-1, 1) * self.t + torch.arange(self.t)
        ids = self.parts[split][at]
        if not self.is_masked:
            return ids, self.parts[split][at + 1]
        chance = lambda: torch.rand(ids.shape, generator=generator)
        chosen, how = chance() < self.share, chance()
        other = torch.randint(0, self.vocab, ids.shape, generator=generator)
        seen = torch.where(how < 0.8, torch.full_like(ids, self.mask), torch.where(how < 0.9, ids, other))
        return torch.where(chosen, seen, ids), torch.where(chosen, ids, torch.full_like(ids, -100))


def evaluate(run, text, config, dtype):
    n = min(text.n_samples(1), max(1, config["train"]["eval_tokens"] // text.t))
    total, count, generator = 0.0, 0, torch.Generator().manual_seed(1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        for samples in torch.arange(n).split(64):
            ids, targets = text.read(1, samples, generator)
            total += F.cross_entropy(logits_of(run, ids).float().flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += (targets >= 0).sum().item()
    return total / count, count


class Trainer:
    def __init__(self, rank, a, config):
        torch.set_num_threads(a.threads)
        torch.manual_seed(a.seed)
        if a.procs > 1:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
            torch.distributed.init_process_group("gloo", rank=rank, world_size=a.procs)
        o = config["optimizer"]
        if o["type"] != "adamw" or o.get("decay", "matrices") != "matrices":
            raise SystemExit("this peer has adamw with decay of matrices")
        self.a, self.o, self.clip = a, o, config["train"].get("clip_norm")
        self.model = build(config["model"], a.own)
        self.model.train()
        parallel = nn.parallel.DistributedDataParallel(self.model) if a.procs > 1 else self.model
        self.run = torch.compile(parallel) if a.compile else parallel
        groups = [{"params": [p for p in self.model.parameters() if (p.dim() > 1) == is_matrix], "weight_decay": o["weight_decay"] * is_matrix}
                  for is_matrix in (True, False)]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=o["lr"], betas=tuple(o["betas"]), eps=o["eps"], fused=True)

    def step(self, ids, targets, lr, count):
        """One update; the loss is this process's sum over the global count of targets."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast("cpu", torch.bfloat16, enabled=self.a.dtype == "bf16"):
            logits = logits_of(self.run, ids)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum") * (self.a.procs / count)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach() / self.a.procs


def measure(rank, a, config):
    t, batch, length = Trainer(rank, a, config), config["train"]["global_batch"], config["data"]["seq_len"]
    ids = torch.randint(0, 256, (batch // a.procs, length))
    times = []
    for step in range(a.steps + 3):
        begin = time.perf_counter()
        t.step(ids, ids, t.o["lr"], batch * length)
        if step >= 3:
            times.append(time.perf_counter() - begin)
    if rank == 0:
        median = statistics.median(times)
        print(json.dumps({"peer": "pytorch " + torch.__version__, "model": type(t.model).__name__, "procs": a.procs, "threads": a.threads, "dtype": a.dtype,
                          "compiled": a.compile, "tokens": batch * length, "step_ms": 1e3 * median, "least_ms": 1e3 * min(times),
                          "most_ms": 1e3 * max(times), "steps": len(times), "times_ms": [1e3 * t for t in times], "tps": batch * length / median}), flush=True)


def train(rank, a, config):
    t, text, c = Trainer(rank, a, config), Text(config), config["train"]
    batch, steps, every = c["global_batch"], c["steps"], c.get("log_every", 10)
    per_epoch, rows = text.n_samples(0) // batch, batch // a.procs
    order, masks = torch.Generator().manual_seed(a.seed), torch.Generator().manual_seed(a.seed + 1)
    out = open(f"{a.out}/metrics.jsonl", "w", buffering=1) if rank == 0 else None
    held, begin = torch.zeros(1), time.perf_counter()
    for step in range(min(a.steps or steps, steps)):
        if step % per_epoch == 0:
            samples = torch.randperm(text.n_samples(0), generator=order)
        at = step % per_epoch * batch
        ids, targets = text.read(0, samples[at:at + batch], masks)  # rows of all ranks: one draw of masks, whose count every rank needs
        mine, lr = slice(rank * rows, (rank + 1) * rows), learning_rate(config, step, steps)
        held += t.step(ids[mine], targets[mine], lr, (targets >= 0).sum().item())
        row = {"step": step + 1, "epoch": (step + 1) / per_epoch}
        if (step + 1) % every == 0:
            if a.procs > 1:
                torch.distributed.all_reduce(held)
            seconds = time.perf_counter() - begin
            if rank == 0:
                out.write(json.dumps({**row, "loss": held.item() / every, "lr": lr, "tps": every * batch * text.t / seconds}) + "\n")
            held, begin = torch.zeros(1), time.perf_counter()
        if rank == 0 and ((step + 1) % c["eval_every"] == 0 or step + 1 == steps):
            t.model.eval()
            loss, _ = evaluate(t.model, text, config, a.dtype)
            t.model.train()
            out.write(json.dumps({**row, "val_loss": loss}) + "\n")
            print(f"step {step + 1}/{steps}  val_loss {loss:.4f}", flush=True)


def loss_of_weights(a, config):
    if transformers is None:
        raise SystemExit("loss: needs transformers")
    torch.set_num_threads(a.procs * a.threads)
    kind = {"llama": transformers.LlamaForCausalLM, "bert": transformers.BertForMaskedLM}[config["model"]["model_type"]]
    loss, count = evaluate(kind.from_pretrained(a.weights, dtype=torch.float32).eval(), Text(config), config, "f32")
    print(json.dumps({"val_loss": loss, "targets": count, "perplexity": math.exp(loss)}))


def worker(rank, a, config):
    (measure if a.mode == "speed" else train)(rank, a, config)
    if a.procs > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["speed", "train", "loss"])
    p.add_argument("config", help="a configuration of kumi's")
    for name, value, what in (("procs", 2, "processes"), ("threads", 1, "of a process"), ("seed", 1337, ""),
                              ("steps", 0, "speed: measured behind three (default 40); train: stop after so many, on the configuration's schedule")):
        p.add_argument("--" + name, type=int, default=value, help=what)
    p.add_argument("--dtype", choices=["f32", "bf16"], help="default: the configuration's precision.compute")
    p.add_argument("--data", help="the text, in place of the configuration's data.train")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--own", action="store_true", help="the model of this file, even where transformers is installed")
    p.add_argument("--out", help="train: where metrics.jsonl goes")
    p.add_argument("--weights", help="loss: a directory that kumi ckpt export wrote")
    a = p.parse_args()
    config = json.load(open(a.config))
    config["data"]["train"] = a.data or config["data"]["train"]
    a.dtype = a.dtype or config.get("precision", {}).get("compute", "f32")
    if config["train"]["global_batch"] % a.procs:
        p.error(f"--procs {a.procs}: does not divide train.global_batch {config['train']['global_batch']}")
    needed = {"train": "out", "loss": "weights"}.get(a.mode)
    if needed and getattr(a, needed) is None:
        p.error(f"{a.mode}: give --{needed} DIR")
    if a.mode == "loss":
        return loss_of_weights(a, config)
    if a.mode == "speed":
        a.steps = a.steps or 40
    else:
        os.makedirs(a.out, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        a.port = free.getsockname()[1]
    if a.procs > 1:
        mp.spawn(worker, (a, config), a.procs)
    else:
        worker(0, a, config)


if __name__ == "__main__":
    main()
