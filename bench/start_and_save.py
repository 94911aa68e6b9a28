#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When the first step begins, and what the longest step loses to a checkpoint written meanwhile.

start_and_save.py KUMI [CONFIG [RANKS [DIR]]]: DIR is on the disk that checkpoints go to.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

kumi, config, ranks, where = (sys.argv[1:] + ["configs/gpt2-124m.json", "2", "."][len(sys.argv) - 2:])[:4]
root = tempfile.mkdtemp(prefix="kumi-bench-", dir=where)
env = dict(os.environ, KUMI_CACHE=root)


def steps(out):
    try:
        with open(out + "/metrics.jsonl") as f:
            return [json.loads(line) for line in f if line.endswith("\n") and "step_ms" in line]
    except FileNotFoundError:
        return []


def first_step():
    out = tempfile.mkdtemp(dir=root) + "/run"
    begin = time.time()
    run = subprocess.Popen([kumi, "train", config, "-n", ranks, "--set", "train.log_every=1", "--set",
                            "checkpoint.every=0", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not steps(out) and run.poll() is None:
        time.sleep(0.002)
    seconds = time.time() - begin - steps(out)[0]["step_ms"] / 1e3
    run.kill()
    run.wait()
    time.sleep(1)
    touch = subprocess.run([kumi, "bench", "peak", "--json"], capture_output=True, text=True, env=env).stdout
    rate = next(r["value"] for r in map(json.loads, touch.splitlines()) if r["what"] == "first touch")
    plan = json.loads(subprocess.run([kumi, "plan", config, "-n", ranks, "--json"], capture_output=True, text=True).stdout)
    bound = 1 + plan["host_bytes"] / rate
    print("first step after %.2f s; bound %.2f: 1 s + %.2f GB at %.2f GB/s" % (seconds, bound, plan["host_bytes"] / 1e9, rate / 1e9))


def background():
    out = tempfile.mkdtemp(dir=root) + "/run"
    subprocess.run([kumi, "train", config, "-n", ranks, "--set", "train.log_every=1", "--set", "train.steps=11", "--set",
                    "checkpoint.every=3", "--set", "checkpoint.async=true", "--set", "checkpoint.keep=1", "--out", out],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    ms = [s["step_ms"] for s in steps(out)]
    last = out + "/checkpoints/" + os.listdir(out + "/checkpoints")[0]
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk(last) for f in names)
    begin = time.time()
    subprocess.run(["dd", "if=/dev/zero", "of=" + root + "/dd", "bs=4M", "count=%d" % (size >> 22), "oflag=direct",
                    "conv=fsync"], stderr=subprocess.DEVNULL, check=True)
    disk_ms = (time.time() - begin) * 1e3
    median = statistics.median(ms)
    print("step median %.0f ms, longest %.0f; bound %.0f: 1.05 medians + %.2f GB that dd writes in %.0f ms" %
          (median, max(ms[1:]), 1.05 * median + disk_ms, size / 1e9, disk_ms))


try:
    for _ in range(3):
        first_step()
    background()
finally:
    subprocess.run(["rm", "-rf", root])
