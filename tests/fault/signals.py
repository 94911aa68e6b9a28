# SPDX-License-Identifier: Apache-2.0
"""A signal that asks to stop, at every moment of a training run's start: the run ends with 10, its state saved. signals.py KUMI FOLDER COUNT"""
import os
import random
import signal
import subprocess
import sys
import time

SMALL = ["train.virtual_shards=4", "train.global_batch=8", "train.eval_tokens=2048", "model.n_layer=1", "train.steps=1000000"]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def left_behind(out):
    """Command lines of processes that still work for the run in folder `out`."""
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if out.encode() in words:
            lines.append(b" ".join(words).decode())
    return lines


def main():
    kumi, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rng = random.Random(7)
    failures = 0
    for i in range(count):
        out, stop, ranks = f"{folder}/{i}", STOPS[i % 4], (1, 2, 4)[i // 4 % 3]
        delay = rng.random() * (0.02 if (i + i // 4) % 2 else 0.3)  # the first 20 ms hold most of what a launcher does
        command = [kumi, "train", "configs/shakespeare-fast.json", "-n", str(ranks), "--out", out]
        command += [word for setting in SMALL for word in ("--set", setting)]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(delay)
        run.send_signal(stop)
        try:
            error = run.communicate(timeout=120)[1].decode()
        except subprocess.TimeoutExpired:
            run.kill()
            error = run.communicate()[1].decode() + "(no end)"
        # Before its first instruction a program has no say in what a signal does.
        is_unborn = run.returncode == -stop and not error and not os.path.exists(out)
        is_saved = run.returncode == 10 and f"kumi: stopped: signal {int(stop)}: step " in error
        left = left_behind(out)
        if left or not (is_saved or is_unborn):
            failures += 1
            print(f"{ranks} ranks, signal {int(stop)} after {delay * 1e3:.1f} ms: exit {run.returncode}, left: {left}: {error[-300:]}")
    return failures


sys.exit(1 if main() else 0)
