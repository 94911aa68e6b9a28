#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 training speed of PyTorch, a peer of bench/performance.py: one JSON line with the median tokens per second.

    pytorch_gpt2.py --procs 2 --threads 1 --dtype bf16 --batch 4 --tokens 256 --steps 8 [--accumulate 8] [--compile]

With --procs > 1 it is DistributedDataParallel over Gloo, or FSDP2 by block: --shard full has its defaults (blocks are resharded after
forward, the root is not), --shard grad keeps the blocks gathered too. --reduce bf16 reduces gradients in bf16: FSDP2's reduce_dtype, DDP's
bf16_compress_hook; f32, the default, is what kumi's precision.reduce is too. The batch is that of all processes together in one backward;
--accumulate takes so many of them for an update, and only the last is reduced.
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import time

import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, d, positions, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(positions, d)
        self.h = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def pss():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:"))


def sharded(model, a):
    """FSDP2 by block; parameters and activations in --dtype, masters in f32, gradients reduced in --reduce."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if a.dtype == "bf16" else None, reduce_dtype=DTYPES[a.reduce])
    how = {"mesh": torch.distributed.device_mesh.init_device_mesh("cpu", (a.procs,)), "mp_policy": policy}
    for block in model.h:
        fully_shard(block, **how, **({} if a.shard == "full" else {"reshard_after_forward": False}))
    return fully_shard(model, **how)


def replicated(model, a):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    ddp = nn.parallel.DistributedDataParallel(model)
    if a.reduce == "bf16":
        ddp.register_comm_hook(None, bf16_compress_hook)
    return ddp


def only_last(model, is_last, a):
    """Gradients are reduced in the last backward of an update alone."""
    if a.procs == 1 or (is_last and a.shard == "none"):
        return contextlib.nullcontext()
    if a.shard == "none":
        return model.no_sync()
    model.set_requires_gradient_sync(is_last)
    return contextlib.nullcontext()


def worker(rank, a):
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    if a.procs > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=a.procs)
    model = GPT2(a.layers, a.heads, a.width, max(a.tokens, 64), a.vocab)
    is_sharded = a.procs > 1 and a.shard != "none"
    step_model = sharded(model, a) if is_sharded else replicated(model, a) if a.procs > 1 else model
    run = torch.compile(step_model) if a.compile else step_model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    rows = a.batch // a.procs
    ids = torch.randint(0, a.vocab, (rows, a.tokens))
    times = []
    for step in range(a.warmup + a.steps):
        begin = time.perf_counter()
        for i in range(a.accumulate):
            is_last = i + 1 == a.accumulate
            with only_last(step_model, is_last, a):
                with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16" and not is_sharded):
                    loss = run(ids, ids.roll(-1, 1)) / a.accumulate
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= a.warmup:
            times.append(time.perf_counter() - begin)
    held = torch.tensor([pss()], dtype=torch.float64)
    if a.procs > 1:
        torch.distributed.all_reduce(held)
    if rank == 0:
        tokens, median = a.batch * a.tokens * a.accumulate, statistics.median(times)
        print(json.dumps({"peer": "pytorch " + torch.__version__, "procs": a.procs, "threads": a.threads, "dtype": a.dtype,
                          "compiled": a.compile, "shard": a.shard, "reduce": a.reduce, "tokens": tokens, "step_ms": 1e3 * median, "least_ms": 1e3 * min(times),
                          "most_ms": 1e3 * max(times), "steps": len(times), "times_ms": [1e3 * t for t in times], "pss_bytes": int(held.item()),
                          "tps": tokens / median}), flush=True)
    if a.procs > 1:
        torch.distributed.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    for name, value in dict(procs=2, threads=1, batch=4, tokens=256, steps=8, layers=12, heads=12, width=768, vocab=50304, accumulate=1, warmup=2,
                            port=29511).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dtype", choices=list(DTYPES), default="f32")
    p.add_argument("--reduce", choices=list(DTYPES), default="f32")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--shard", choices=["none", "grad", "full"], default="none")
    a = p.parse_args()
    assert math.gcd(a.batch, a.procs) == a.procs
    if a.procs > 1:
        mp.spawn(worker, (a,), a.procs)
    else:
        worker(0, a)


if __name__ == "__main__":
    main()
