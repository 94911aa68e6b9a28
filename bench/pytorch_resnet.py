#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Residual networks on CIFAR-10 in PyTorch, the peer of configs/resnet20-cifar10.json and configs/resnet18-cifar10.json.

    pytorch_resnet.py speed CONFIG --procs 2 --threads 1 --dtype bf16 --steps 10 [--compile] [--contiguous]
    pytorch_resnet.py train CONFIG --out DIR --procs 2 --threads 1 [--epochs E] [--seed S]

Depth, batch, optimizer, schedule and augmentation are those of the configuration, so that both learn by one recipe. `speed` prints one JSON line with the
median of step times on random images; `train` writes DIR/metrics.jsonl with the keys of `kumi train`, which tools/curve.py draws. With --procs > 1 it is
DistributedDataParallel over Gloo, with batch norm's statistics by process, as kumi's are by micro-batch. Memory is channels-last but for --contiguous.
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

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
STAGES = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3]}


class Block(nn.Module):
    """torchvision's BasicBlock. The shortcut where shapes change is option B, or A: every second pixel, zeros for the new channels."""

    def __init__(self, before, width, stride, pads):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.new = stride, width - before
        self.downsample = None
        if not pads and (stride > 1 or self.new):
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.new:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))
        return F.relu(y + x)


class ResNet(nn.Module):
    """He et al.'s for CIFAR of depth 6 n + 2, or torchvision's 18 and 34 behind a 3 x 3 stem; values first drawn as kumi's are."""

    def __init__(self, depth, classes):
        super().__init__()
        pads = depth not in STAGES
        stages, width = ([(depth - 2) // 6] * 3, 16) if pads else (STAGES[depth], 64)
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        before = width
        self.n_stages = len(stages)
        for s, blocks in enumerate(stages):
            layer = []
            for b in range(blocks):
                layer.append(Block(before, width << s, 2 if s and b == 0 else 1, pads))
                before = width << s
            setattr(self, f"layer{s + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(before, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.fc.weight, std=math.sqrt(1 / (3 * before)))
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for s in range(self.n_stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(x.mean((2, 3)))


def epochs_of(value):
    """A configuration's "3ep"."""
    if not str(value).endswith("ep"):
        raise SystemExit(f"{value}: this peer counts epochs, as in \"3ep\"")
    return int(value[:-2])


def learning_rate(config, update, steps_per_epoch, n_steps):
    """kumi's linear warm-up and cosine, updates from 0."""
    o, s = config["optimizer"], config["schedule"]
    if s["type"] != "cosine":
        raise SystemExit(f"schedule.type: {s['type']}; this peer has cosine")
    warmup, least = epochs_of(s.get("warmup_steps", "0ep")) * steps_per_epoch, s.get("min_lr", 0.0)
    if update < warmup:
        return o["lr"] * (update + 1) / (warmup + 1)
    return least + 0.5 * (o["lr"] - least) * (1 + math.cos(math.pi * min(1, (update - warmup) / max(1, n_steps - warmup))))


def records(folder, names):
    raw = np.concatenate([np.fromfile(f"{folder}/{name}", np.uint8) for name in names]).reshape(-1, 3073)
    return torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(raw[:, 0].astype(np.int64))


def normalised(images):
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, STD))
    return (images.float() / 255 - mean) / std


def augmented(images, d, generator):
    """RandomCrop(32, padding), then RandomHorizontalFlip(flip): each image by itself."""
    pad, n = d.get("padding", 0), len(images)
    padded = F.pad(images, (pad,) * 4)
    at = torch.randint(0, 2 * pad + 1, (2, n), generator=generator)
    rows, columns = (at[i].view(n, 1) + torch.arange(32) for i in (0, 1))
    flips = torch.rand(n, generator=generator) < d.get("flip", 0.0)
    columns = torch.where(flips.view(n, 1), columns.flip(1), columns)
    return padded[torch.arange(n).view(n, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1), rows.view(n, 1, 32, 1), columns.view(n, 1, 1, 32)]


def evaluate(model, images, targets, layout, dtype):
    model.eval()
    loss, top1, top5 = 0.0, 0, 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        for i in range(0, len(images), 250):
            y = targets[i:i + 250]
            logits = model(normalised(images[i:i + 250]).to(memory_format=layout)).float()
            best = logits.topk(5).indices == y.view(-1, 1)
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            top1, top5 = top1 + best[:, 0].sum().item(), top5 + best.sum().item()
    model.train()
    return {"val_loss": loss / len(images), "val_accuracy": top1 / len(images), "val_top5": top5 / len(images)}


class Trainer:
    def __init__(self, rank, a, config):
        torch.set_num_threads(a.threads)
        torch.manual_seed(a.seed)
        if a.procs > 1:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
            torch.distributed.init_process_group("gloo", rank=rank, world_size=a.procs)
        o = config["optimizer"]
        self.layout = torch.contiguous_format if a.contiguous else torch.channels_last
        self.model = ResNet(config["model"]["depth"], config["model"]["num_classes"]).to(memory_format=self.layout)
        parallel = nn.parallel.DistributedDataParallel(self.model) if a.procs > 1 else self.model
        self.run = torch.compile(parallel) if a.compile else parallel
        self.dtype, self.smoothing = a.dtype, config["train"].get("label_smoothing", 0.0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=o["lr"], momentum=o["momentum"], weight_decay=o["weight_decay"],
                                         nesterov=o["nesterov"], fused=True)

    def step(self, images, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bf16"):
            logits = self.run(images.to(memory_format=self.layout))
        loss = F.cross_entropy(logits.float(), targets, label_smoothing=self.smoothing)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), (logits.argmax(1) == targets).sum()


def measure(rank, a, config):
    t, batch = Trainer(rank, a, config), config["train"]["global_batch"]
    images, targets = torch.randn(batch // a.procs, 3, 32, 32), torch.randint(0, 10, (batch // a.procs,))
    times = []
    for step in range(a.steps + 2):
        begin = time.perf_counter()
        t.step(images, targets)
        if step >= 2:
            times.append(time.perf_counter() - begin)
    if rank == 0:
        median = statistics.median(times)
        print(json.dumps({"peer": "pytorch " + torch.__version__, "procs": a.procs, "threads": a.threads, "dtype": a.dtype,
                          "compiled": a.compile, "channels_last": not a.contiguous, "samples": batch, "step_ms": 1e3 * median,
                          "least_ms": 1e3 * min(times), "most_ms": 1e3 * max(times), "steps": len(times), "times_ms": [1e3 * t for t in times], "tps": batch / median}), flush=True)


def train(rank, a, config):
    t, d, batch = Trainer(rank, a, config), config["data"], config["train"]["global_batch"]
    images, targets = records(d["train"], [f"data_batch_{i}.bin" for i in range(1, 6)])
    held, held_targets = records(d["val"], ["test_batch.bin"])
    epochs, per_epoch, rows = config["train"]["epochs"], len(images) // batch, batch // a.procs
    shared, own = torch.Generator().manual_seed(a.seed), torch.Generator().manual_seed(1000 * a.seed + rank)
    out = open(f"{a.out}/metrics.jsonl", "w", buffering=1) if rank == 0 else None
    for epoch in range(min(a.epochs or epochs, epochs)):
        order, begin, total = torch.randperm(len(images), generator=shared), time.perf_counter(), torch.zeros(2)
        for i in range(per_epoch):
            update = epoch * per_epoch + i
            t.optimizer.param_groups[0]["lr"] = learning_rate(config, update, per_epoch, epochs * per_epoch)
            mine = order[i * batch + rank * rows:i * batch + (rank + 1) * rows]
            loss, right = t.step(normalised(augmented(images[mine], d, own)), targets[mine])
            total += torch.stack([loss * rows, right])
        if a.procs > 1:
            torch.distributed.all_reduce(total)
        if rank == 0:
            seconds, n, step = time.perf_counter() - begin, per_epoch * batch, (epoch + 1) * per_epoch
            row = {"step": step, "epoch": epoch + 1, "loss": total[0].item() / n, "accuracy": total[1].item() / n,
                   "lr": t.optimizer.param_groups[0]["lr"], "samples_per_s": n / seconds}
            held_row = {"step": step, "epoch": epoch + 1, **evaluate(t.model, held, held_targets, t.layout, a.dtype)}
            out.write(json.dumps(row) + "\n" + json.dumps(held_row) + "\n")
            print(f"epoch {epoch + 1}/{epochs}  loss {row['loss']:.4f}  accuracy {row['accuracy']:.4f}  val_loss {held_row['val_loss']:.4f}  "
                  f"val_accuracy {held_row['val_accuracy']:.4f}  {row['samples_per_s']:.0f} samples/s", flush=True)


def worker(rank, a, config):
    (measure if a.mode == "speed" else train)(rank, a, config)
    if a.procs > 1:
        torch.distributed.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["speed", "train"])
    p.add_argument("config", help="a configuration of kumi's")
    for name, value, what in (("procs", 2, "processes"), ("threads", 1, "of a process"), ("steps", 10, "speed: measured behind two"), ("epochs", 0, "train: stop "
                              "after so many; the schedule stays that of the configuration"), ("seed", 1337, "")):
        p.add_argument("--" + name, type=int, default=value, help=what)
    p.add_argument("--dtype", choices=["f32", "bf16"], help="default: the configuration's precision.compute")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--contiguous", action="store_true", help="NCHW in memory, not channels-last")
    p.add_argument("--out", help="train: where metrics.jsonl goes")
    a = p.parse_args()
    config = json.load(open(a.config))
    a.dtype = a.dtype or config.get("precision", {}).get("compute", "f32")
    if config["train"]["global_batch"] % a.procs:
        p.error(f"--procs {a.procs}: does not divide train.global_batch {config['train']['global_batch']}")
    if a.mode == "train":
        if a.out is None:
            p.error("train: give --out DIR")
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
