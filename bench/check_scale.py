#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/internals/check.md: Llama 3.1 405B under 3D parallelism, built and checked by `kumi check` for 64 to 131,072 ranks.

    bench/check_scale.py [--kumi build/kumi]

tp 8, pp 16 (8 for 64 ranks), dp the rest, ZeRO stage 1, interleaved with two stages per rank: 8 layers per rank, 7 on the first and the last. CPU time and peak
resident set of the whole command, which compiles and checks the programs of training, evaluation, initial values and derived tensors of every class, on one core.
"""
import argparse
import os
import resource
import subprocess
import sys

CONFIG = "configs/plan/llama3.1-405b.json"
N_LAYERS, TP, N_VIRTUAL = 126, 8, 2
ROWS = [(n, 16) for n in (64, 128, 512, 2048, 8192, 16384, 32768, 65536, 131072)] + [(16384, m) for m in (32, 64, 128)]


def stages(pp):
    """Layers of each stage: equal but for the first and the last, which have the embedding and the head."""
    n = N_VIRTUAL * pp
    each = -(-N_LAYERS // n)
    ends = (N_LAYERS - (n - 2) * each) // 2
    assert 2 * ends + (n - 2) * each == N_LAYERS
    return [ends] + [each] * (n - 2) + [ends]


def check(kumi, n, n_micro):
    """Instructions of training, CPU seconds and peak bytes of the command."""
    pp = 16 if n >= 128 else 8
    dp = n // (TP * pp)
    sets = {"parallel.tp": TP, "parallel.pp": pp, "parallel.zero": 1 if dp > 1 else 0, "parallel.pp_schedule": "interleaved", "parallel.virtual_stages": N_VIRTUAL,
            "parallel.stages": stages(pp), "train.global_batch": dp * n_micro, "data.seq_len": 8192}
    argv = [kumi, "check", CONFIG, "-n", str(n)]
    for key, value in sets.items():
        argv += ["--set", f"{key}={value}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as p:
        text = p.stdout.read()
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode != 0:
        sys.exit(f"check_scale: {' '.join(argv)}: exit {p.returncode}")
    train = next(line.split() for line in text.splitlines() if line.startswith("train"))
    return pp, dp, int(train[1]), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kumi", default="build/kumi")
    kumi = p.parse_args().kumi
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
    print("| ranks | tp × pp × dp | micro-batches | instructions of a step | CPU time | memory of the command |\n|--:|---|--:|--:|--:|--:|")
    for n, n_micro in ROWS:
        pp, dp, n_instrs, cpu_s, peak = check(kumi, n, n_micro)
        print(f"| {n:,} | {TP} × {pp} × {dp:,} | {n_micro} | {n_instrs:,} | {cpu_s:.2f} s | {peak / 2**20:,.0f} MiB |", flush=True)


main()
