#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of Gloo through PyTorch, the peer of `kumi bench comm`: one JSON object a line, with the same fields.

    gloo_comm.py [--ranks 2] [--most BYTES]
    gloo_comm.py --rank R --master ADDRESS --interface NAME [--most BYTES]      one rank, of two on hosts of their own
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [8, 64 << 10, 1 << 20, 64 << 20, 256 << 20]


def worker(rank, a):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR=a.master, MASTER_PORT=str(a.port))
    dist.init_process_group("gloo", rank=rank, world_size=a.ranks)

    def measure(name, size, call, ways=1):
        runs = max(7, min(1001, (1 << 28) // (size + 65536)))
        try:
            times = []
            for i in range(-2 - runs // 10, runs):
                begin = time.perf_counter()
                call()
                if i >= 0:
                    times.append((time.perf_counter() - begin) * 1e6 / ways)
        except Exception as error: # a backend without this collective is reported, not an error
            if rank == 0:
                print(json.dumps({"collective": name, "bytes": size, "error": str(error)[:100]}), flush=True)
            return
        dist.barrier()
        times.sort()
        if rank == 0:
            p50 = times[len(times) // 2]
            print(json.dumps({"collective": name, "memory": "private", "bytes": size, "ranks": a.ranks, "median_us": round(p50, 3),
                              "p99_us": round(times[-1 - len(times) // 100], 3), "gbps": round(size / p50 * 1e-3, 4), "runs": runs}), flush=True)

    measure("barrier", 0, dist.barrier)
    for size in SIZES:
        if size > a.most:
            break
        x, part = torch.zeros(size // 4), torch.zeros(size // 4 // a.ranks)
        measure("all_reduce", size, lambda: dist.all_reduce(x))
        if a.ranks > 2:
            continue

        def there_and_back():
            for sender in 0, 1:
                dist.send(x, 1 - rank) if rank == sender else dist.recv(x, 1 - rank)
        measure("reduce_scatter", size, lambda: dist.reduce_scatter_tensor(part, x))
        measure("all_gather", size, lambda: dist.all_gather_into_tensor(x, part))
        measure("broadcast", size, lambda: dist.broadcast(x, 0))
        measure("send_recv", size, there_and_back, 2)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--most", type=int, default=SIZES[-1])
    p.add_argument("--port", type=int, default=29521)
    p.add_argument("--rank", type=int)
    p.add_argument("--master", default="127.0.0.1")
    p.add_argument("--interface")
    args = p.parse_args()
    if args.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = args.interface
    if args.rank is None:
        mp.spawn(worker, (args,), args.ranks)
    else:
        worker(args.rank, args)
