#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 training speed of PyTorch with one model over two processes, a peer of bench/performance.py: one JSON line with the median tokens per second.

    pytorch_parallel.py --how tp|tp-sp|pp [--schedule 1f1b|zb1p|zbv] [--dtype bf16] [--batch 16] [--micro 2] [--steps 4]

tp      torch.distributed.tensor.parallel.parallelize_module over Gloo: column- and row-parallel layers, table and loss divided over the vocabulary
tp-sp   the same with SequenceParallel norms
pp      torch.distributed.pipelining over micro-batches of --micro sequences: Schedule1F1B and ScheduleInterleavedZeroBubble (zb1p) with one stage on each
        process, ScheduleZBVZeroBubble (zbv) with two. Layers are divided so that the slower process has as little as is possible; the head counts as so
        many layers as it has their parameters

The fused projection to q, k and v is cut in contiguous columns, so a process's heads are not those of one process; the work is the same. The table and the head are
two parameters in a pipeline, as in PyTorch's examples. The optimizer is the fused AdamW.
"""
import argparse
import itertools
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

import pytorch_gpt2 as gpt2

PROCS = 2


class Block(gpt2.Block):
    """Of as many heads as the projection has columns for."""
    head_width = 64

    def forward(self, x):
        qkv = self.qkv(self.ln_1(x))
        b, t, columns = qkv.shape
        q, k, v = qkv.view(b, t, 3, columns // 3 // self.head_width, self.head_width).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, columns // 3))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Logits(gpt2.GPT2):
    """Without the loss; in a stage of a pipeline without the table, or without the head."""

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            x = block(x)
        return x if self.head is None else self.head(self.ln_f(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def model_of(a):
    gpt2.Block = Block
    Block.head_width = a.width // a.heads
    return Logits(a.layers, a.heads, a.width, a.tokens, a.vocab)


def divided(model, a):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
    mesh, has_sp = init_device_mesh("cpu", (PROCS,)), a.how == "tp-sp"
    between = Shard(1) if has_sp else Replicate()
    row, column = lambda: RowwiseParallel(output_layouts=between), lambda: ColwiseParallel(input_layouts=between)
    plan = {"wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()), "head": ColwiseParallel(input_layouts=between, use_local_output=False)}
    for i in range(a.layers):
        plan |= {f"h.{i}.qkv": column(), f"h.{i}.proj": row(), f"h.{i}.fc": column(), f"h.{i}.out": row()}
        plan |= {f"h.{i}.ln_1": SequenceParallel(), f"h.{i}.ln_2": SequenceParallel()} if has_sp else {}
    if has_sp:
        plan |= {"ln_f": SequenceParallel(), "h.0": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True)}
    parallelize_module(model, mesh, plan)
    model.head.weight = model.wte.weight
    return model


def tensor_step(a):
    """A step of micro-batches, and the model."""
    from torch.distributed.tensor.parallel import loss_parallel
    model = divided(model_of(a), a)

    def step(ids):
        for part in ids.split(a.micro):
            with loss_parallel(), torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
                loss = loss_of(model(part), part.roll(-1, 1)) * (len(part) / len(ids))
                loss.backward()
    return step, model


class Stage(nn.Module):
    """Layers of a model, with the table before them or the head after them."""
    forward = Logits.forward

    def __init__(self, model, layers, is_first, is_last):
        super().__init__()
        self.wte, self.wpe = (model.wte, model.wpe) if is_first else (None, None)
        self.h = nn.ModuleList(model.h[i] for i in layers)
        self.ln_f, self.head = (model.ln_f, model.head) if is_last else (None, None)


def split(layers, owners, head):
    """The layers of each stage. owners: the process of each; head: what the last stage has besides, in layers. The slowest process has as little as possible, then the
    slowest stage."""
    def slowest(cuts):
        loads = [end - begin for begin, end in itertools.pairwise((0, *cuts, layers))]
        loads[-1] += head
        return max(sum(x for x, o in zip(loads, owners) if o == owner) for owner in set(owners)), max(loads)
    cuts = min(itertools.combinations_with_replacement(range(layers + 1), len(owners) - 1), key=slowest)
    return [range(begin, end) for begin, end in itertools.pairwise((0, *cuts, layers))]


def pipeline_step(a, rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble
    owners = [0, 1, 1, 0] if a.schedule == "zbv" else [0, 1]
    layers, model = split(a.layers, owners, a.vocab / (12 * a.width)), model_of(a)
    model.head.weight = nn.Parameter(model.wte.weight.detach().clone())
    n, own = len(owners), [i for i, owner in enumerate(owners) if owner == rank]
    parts = nn.ModuleList(Stage(model, layers[i], i == 0, i == n - 1) for i in own)
    stages = [PipelineStage(part, i, n, torch.device("cpu")) for part, i in zip(parts, own)]
    kind = {"1f1b": Schedule1F1B, "zb1p": ScheduleInterleavedZeroBubble, "zbv": ScheduleZBVZeroBubble}[a.schedule]
    schedule = kind(stages[0] if a.schedule == "1f1b" else stages, a.batch // a.micro, loss_fn=loss_of)

    def step(ids):
        last = {"target": ids.roll(-1, 1), "losses": []} if n - 1 in own else {}
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            schedule.step(*((ids,) if 0 in own else ()), **last, return_outputs=False)
    return step, parts


def clip(model, limit):
    """clip_grad_norm_ of a model of which parallelize_module has divided some parameters and left others as tensors."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    parts = [[g for g in grads if hasattr(g, "full_tensor") == is_divided] for is_divided in (False, True)]
    norms = [nn.utils.get_total_norm(part, foreach=False) for part in parts if part]
    total = sum(float(n.full_tensor() if hasattr(n, "full_tensor") else n) ** 2 for n in norms) ** 0.5
    for g in grads:
        g.mul_(min(1.0, limit / (total + 1e-6)))


def worker(rank, a):
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    dist.init_process_group("gloo", rank=rank, world_size=PROCS)
    step, model = pipeline_step(a, rank) if a.how == "pp" else tensor_step(a)
    groups = [[p for p in model.parameters() if hasattr(p, "full_tensor") == is_divided] for is_divided in (False, True)] # a kernel takes one kind
    optimizer = torch.optim.AdamW([{"params": group} for group in groups if group], lr=1e-4, weight_decay=0.1, fused=True)
    ids, times = torch.randint(0, a.vocab, (a.batch, a.tokens)), []
    dist.barrier()
    for i in range(a.warmup + a.steps):
        begin = time.perf_counter()
        step(ids)
        clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i >= a.warmup:
            times.append(time.perf_counter() - begin)
    if rank == 0:
        tokens, median = a.batch * a.tokens, statistics.median(times)
        print(json.dumps({"peer": "pytorch " + torch.__version__, "how": a.how, "schedule": a.schedule if a.how == "pp" else None, "micro": a.micro, "procs": PROCS, "threads": a.threads, "dtype": a.dtype, "tokens": tokens,
                          "step_ms": 1e3 * median, "times_ms": [1e3 * t for t in times], "tps": tokens / median}), flush=True)
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    for name, value in dict(threads=1, batch=16, micro=2, tokens=256, steps=4, layers=12, heads=12, width=768, vocab=50304, warmup=1, port=29517).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dtype", choices=list(gpt2.DTYPES), default="f32")
    p.add_argument("--how", choices=["tp", "tp-sp", "pp"], required=True)
    p.add_argument("--schedule", choices=["1f1b", "zb1p", "zbv"], default="1f1b")
    a = p.parse_args()
    assert a.batch % a.micro == 0 and a.heads % PROCS == 0 and a.vocab % PROCS == 0
    mp.spawn(worker, (a,), PROCS)


if __name__ == "__main__":
    main()
