#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Section `ps` of bench/performance.py: a parameter server beside all-reduce on the same model and cores, its calls beside gRPC alone; as a program the
convergence of ResNet-20 on CIFAR-10 by the modes of updates, on equal samples:

    bench/parameter_server.py convergence CIFAR10_FOLDER [--build build] [--epochs 18] [--seeds 1337,1,2] [--modes sync,async,ssp]
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial

import measure
from measure import GPT2, Failed, images_like_cifar10, spread

RESNET20 = "configs/resnet20-cifar10.json"
WORKERS, TRAIN_IMAGES, BATCH = 2, 50000, 128
MODELS = "GPT-2 124M", "ResNet-20"
MODES = {"sync": (), "async": ("ps.mode=async",), "ssp:2": ("ps.mode=ssp", "ps.staleness=2"), "sync int8": ("ps.compression=int8",),
         "sync topk": ("ps.compression=topk",)}


def words(sets):
    return sum((["--set", s] for s in sets), [])


def rates(out, samples_of, skip):
    """Of the rows of a run's metrics, without the first: samples a second, and the times of updates."""
    rows = [r for r in map(json.loads, open(out + "/metrics.jsonl")) if "step_ms" in r][skip:]
    if not rows:
        raise Failed("no update was measured")
    return {"times_ms": [r["step_ms"] for r in rows], "samples_per_s": 1e3 * samples_of * len(rows) / sum(r["step_ms"] for r in rows)}


def all_reduce(b, config, batch, updates, sets):
    out = f"{b.work}/run"
    shutil.rmtree(out, ignore_errors=True)
    b.run([b.kumi, "train", config, "-n", str(WORKERS), "--out", out, *words((f"train.steps={updates}", *sets))])
    return rates(out, batch, 2)


def is_single(mode):
    """An update of async and ssp has the samples of one worker."""
    return not mode.startswith("sync")


def server(b, config, batch, updates, sets, mode):
    """Two workers and a server, processes of this host."""
    out, single = f"{b.work}/run", is_single(mode)
    updates, batch = (updates * WORKERS, batch / WORKERS) if single else (updates, batch)
    sets = (f"train.steps={updates}", *sets, *MODES[mode])
    shutil.rmtree(out, ignore_errors=True)
    b.run([b.kumi, "ps", "run", config, "-n", str(WORKERS), "-s", "1", "--out", out, "--journal-sync", "none", *words(sets)])
    shutil.rmtree(out + "/journal", ignore_errors=True)
    result = rates(out, batch, 2 * (1 + single))
    plan = json.loads(b.run([b.kumi, "plan", config, "--json", *words((f"ps.workers={WORKERS}", *sets))]))
    return {**result, "push_bytes": plan["worker"]["push_bytes"], "pull_bytes": plan["worker"]["pull_bytes"]}


def merge(turns):
    """One run of several turns: medians."""
    return {**turns[0], "update_ms": spread([t for r in turns for t in r["times_ms"]]), "samples_per_s": spread([r["samples_per_s"] for r in turns]), "times_ms": None}


def throughput(b):
    images = images_like_cifar10(b.work + "/cifar10")
    common = ("train.threads=1", "train.log_every=1", "train.eval_every=0", "checkpoint.every=0")
    models = {"GPT-2 124M": (GPT2, 4, 4 if b.quick else 8, ("model.n_layer=1",) if b.quick else ()),
              "ResNet-20": (RESNET20, BATCH, 6 if b.quick else 60, (f"data.train={images}", f"data.val={images}", "train.epochs=null", "schedule.warmup_steps=1"))}
    calls = {}
    for name, (config, batch, updates, sets) in models.items():
        calls[f"{name}, all-reduce"] = partial(all_reduce, b, config, batch, updates, common + sets)
        for mode in MODES:
            calls[f"{name}, {mode}"] = partial(server, b, config, batch, updates, common + sets, mode)
    found = {name: [] for name in calls}
    for _ in range(1 if b.quick else min(b.turns, 2)): # in turn, so that all see the machine alike
        for name, call in calls.items():
            result = b.attempt(name, call)
            if result:
                found[name].append(result)
                b.say(f"{name}: {result['samples_per_s']:.2f} samples/s")
    return {name: merge(turns) for name, turns in found.items() if turns}


# -- convergence

def learn(kumi, config, folder, out, mode, epochs, seed, limit_s=None):
    """The validation accuracy after so many epochs' samples: with async and ssp twice the updates, each of half the batch at half the rate."""
    single = is_single(mode)
    each = TRAIN_IMAGES // BATCH * (WORKERS if single else 1)
    rate = json.load(open(config))["optimizer"]["lr"] / (WORKERS if single else 1)
    sets = (f"ps.workers={WORKERS}", f"train.steps={round(epochs * each)}", "train.epochs=null", f"schedule.warmup_steps={min(each, round(epochs * each / 4)) or 1}",
            f"optimizer.lr={rate}", f"train.seed={seed}", f"data.train={folder}", f"data.val={folder}", "train.eval_every=0", "checkpoint.every=0", *MODES[mode])
    shutil.rmtree(out, ignore_errors=True)
    for argv in [kumi, "train", config, "--out", out, *words(sets)], [kumi, "eval", out, "--json"]:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s)
        if done.returncode:
            raise Failed(f"{mode}, seed {seed}: {(done.stderr.splitlines() or ['?'])[-1]}")
    result = json.loads(done.stdout)
    return {"loss": result["val_loss"], "accuracy": result["val_accuracy"]}


def convergence(b):
    """A small budget beside the table; the full run is this file's own command. CIFAR10=DIR names the data."""
    folder = os.environ.get("CIFAR10")
    if not folder:
        b.lack("convergence: CIFAR10=DIR names the binary files of CIFAR-10")
        return None
    seeds, epochs = ((1337,), 0.05) if b.quick else ((1337, 1, 2), 2)
    return {mode: [r for r in (b.attempt(f"{mode}, seed {seed}", partial(learn, b.kumi, RESNET20, folder, f"{b.work}/run", mode, epochs, seed)) for seed in seeds) if r]
            for mode in ("sync", "async", "ssp:2")}


def ps(b):
    """Throughput by mode of update, latency of calls, convergence."""
    kumi_ps = b.kumi + "-ps"
    if not os.access(kumi_ps, os.X_OK):
        raise Failed(f"{kumi_ps}: not there; build with gRPC")
    calls = b.attempt("calls", lambda: json.loads(b.run([kumi_ps, "bench", "--service", "--json", *(["--quick"] if b.quick else [])])))
    return {"throughput": throughput(b), "calls": calls, "convergence": convergence(b)}


def moved(row):
    """Bytes of a worker's step."""
    return (row.get("push_bytes") or 0) + (row.get("pull_bytes") or 0)


def modes(r, where):
    """Bytes and samples a second of every mode beside all-reduce: the lines of a table."""
    from table import ratio
    speed = r.of("ps").get("throughput") or {}
    if not speed:
        return None
    rate_of = lambda row: (row.get("samples_per_s") or {}).get("median")
    out = [f"Two workers of one thread and one server on two cores, which the server shares with the workers: {where}; {r.sections['ps']['date']}, `--journal-sync none`. MB: what a worker "
           "pushes and pulls in a step. Samples a second, and beside all-reduce between two ranks. Other kinds of CPU differ.", "",
           "| | " + " | ".join(f"{name}, MB | samples/s | × all-reduce" for name in MODELS) + " |", "|---" + "|--:" * 3 * len(MODELS) + "|"]
    for mode in "all-reduce", *MODES:
        cells = []
        for name in MODELS:
            row, whole = (speed.get(f"{name}, {key}") or {} for key in (mode, "all-reduce"))
            figures = moved(row) and f"{moved(row) / 1e6:,.1f}", rate_of(row) and (f"{rate_of(row):,.0f}" if rate_of(row) >= 100 else f"{rate_of(row):.2f}"), rate_of(whole) and rate_of(row) and f"{ratio(rate_of(row), rate_of(whole)):.2f}"
            cells += [figure or "–" for figure in figures]
        out.append(f"| {mode} | " + " | ".join(cells) + " |")
    return out


def checks(r):
    """Targets, in the form of table.py's rows."""
    from table import at_least, at_most, figure, ratio
    data = r.of("ps")
    calls, speed, learned = (data.get(key) or {} for key in ("calls", "throughput", "convergence"))
    unix, tcp, out = calls.get("unix") or {}, calls.get("tcp") or {}, []
    first = lambda row, key: (row.get(key) or [None])[0]
    out += [at_most("push of 1 KiB over a Unix socket, p50, µs", first(unix, "push_p50_us"), 80, 1), at_most("p99, µs", first(unix, "push_p99_us"), 400, 1)]
    for name, row in ("Unix socket", unix), ("TCP", tcp):
        own, _, echo = row.get("stream_bytes_per_s") or (None, None, None)
        out.append(at_least(f"stream over a {name} × gRPC's echo" if name != "TCP" else "stream over TCP × gRPC's echo", ratio(own, echo), 0.9))
    pulled = first(unix, "stream_bytes_per_cpu_s")
    out.append(at_least("pulled per core, GB/s", pulled and pulled / 1e9, 2))
    service = calls.get("service") or {}
    if service: # older records have none
        size, rate = service["push_bytes"], service["pull_bytes_per_cpu_s"] / 1e9
        out += [figure(f"push of {size:,} B to a server of a training until it is synced, p50, µs", service["push_p50_us"], "{:.1f}"), figure("p99, µs", service["push_p99_us"], "{:.1f}")]
        out.append(figure("pulled per core from a server of a training, GB/s", rate))
    for name in MODELS:
        whole = ((speed.get(f"{name}, all-reduce") or {}).get("samples_per_s") or {}).get("median")
        for mode in MODES:
            row = speed.get(f"{name}, {mode}")
            if row is None:
                continue
            out.append(figure(f"{name}, {mode} × all-reduce ({moved(row) / 1e6:.1f} MB a step of a worker)", ratio((row.get("samples_per_s") or {}).get("median"), whole)))
    mean = lambda mode: statistics.mean(x["accuracy"] for x in learned[mode]) if learned.get(mode) else None
    for mode in "async", "ssp:2":
        if mean("sync") is not None and mean(mode) is not None:
            out.append(at_most(f"accuracy of sync less {mode}, points", 100 * (mean("sync") - mean(mode)), 1))
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["convergence"])
    p.add_argument("folder", help="the binary files of CIFAR-10")
    p.add_argument("--build", default="build")
    p.add_argument("--epochs", type=float, default=18, help="default: 18, the recipe of configs/resnet20-cifar10.json")
    p.add_argument("--seeds", default="1337,1,2")
    p.add_argument("--modes", default="sync,async,ssp:2")
    a = p.parse_args()
    folder, kumi = os.path.abspath(a.folder), os.path.abspath(a.build) + "/kumi"
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    found = {}
    with tempfile.TemporaryDirectory(prefix="kumi-ps-") as work:
        for seed in map(int, a.seeds.split(",")):
            for mode in a.modes.split(","):
                try:
                    got = learn(kumi, RESNET20, folder, work + "/run", mode, a.epochs, seed)
                except Failed as error:
                    return f"failed: {error}"
                found.setdefault(mode, []).append(got)
                print(f"{mode:8} seed {seed:6}  loss {got['loss']:.4f}  accuracy {100 * got['accuracy']:.2f} %", flush=True)
    for mode, runs in found.items():
        print(f"{mode:8} mean of {len(runs)}: {100 * statistics.mean(x['accuracy'] for x in runs):.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
