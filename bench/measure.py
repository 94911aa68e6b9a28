# SPDX-License-Identifier: Apache-2.0
"""What bench/performance.py measures, a function a section: each gives a JSON object, and names what it could not measure."""
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from functools import partial

MIB = 1 << 20
GPT2, NANO, ENJA = "configs/gpt2-124m.json", "configs/nanogpt-cpu.json", "configs/enja.json"
LLAMA, RESNET18 = "configs/llama-tiny.json", "configs/resnet18-cifar10.json"
MASK_AMX = {"KUMI_CPU_ISA": "avx512bf16", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"} # PyTorch's other kernels use no AMX
DISTURBED, EXTRA_ROUNDS = 0.15, 2 # a turn is discarded if a peak beside it is further from the section's median; rounds that repeat such turns
EXTRA_TIME, EXTRA_SECONDS = 0.5, 60 # for the rounds that repeat turns: the part of the time of all rounds before them, and at least so long


class Bench:
    """Where things are, and how commands are run: with a limit, in a group of their own, without a word on our streams."""

    def __init__(self, build, env, work, quick, turns):
        self.kumi, self.python, self.work, self.quick, self.notes = build + "/kumi", env and env + "/bin/python", work, quick, []
        self.turns, self.extra = (1, 0) if quick else (turns, EXTRA_ROUNDS)
        self.peaks, self.discarded = {}, 0 # of this section: all matrix peaks by dtype, discarded turns
        self.limits = {} # the matrix limits by dtype, which mfu and rooflines of this process use
        os.environ["KUMI_CACHE"] = work + "/cache"

    def say(self, text):
        print(f"  {text}", flush=True)

    def lack(self, text):
        self.say("not measured: " + text)
        self.notes.append(text)

    def peak(self):
        """The matrix peaks right now, by dtype: medians of about 0.1 s."""
        rows = self.attempt("the peak between turns", lambda: self.json_lines([self.kumi, "bench", "peak", "--quick", "--json"]))
        now = {row["what"]: row["median"] for row in rows or []}
        for dtype, value in now.items():
            self.peaks.setdefault(dtype, []).append(value)
        return now

    def peak_shares(self):
        """The median peak beside this section's turns by dtype, as a share of the limit, which is the highest peak of this machine."""
        return {dtype: statistics.median(self.peaks[dtype]) / limit["value"] for dtype, limit in self.limits.items() if self.peaks.get(dtype)}

    def disturbance(self, turn):
        """How far the peaks before and after a turn are from the section's median, as a share of it. A virtual machine may be fast for minutes and slow for
        minutes: turns of one such state are compared, the one in which most turns ran."""
        return max((abs(value / statistics.median(self.peaks[dtype]) - 1) for peak in turn[1:] for dtype, value in peak.items()), default=0)

    def undisturbed(self, turns):
        return [turn for turn in turns if self.disturbance(turn) <= DISTURBED]

    def run(self, argv, limit_s=900, env=None, watch=None, with_messages=False):
        p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                             env={**os.environ, **(env or {})})
        stop = threading.Event()
        thread = watch and threading.Thread(target=watch, args=(p.pid, stop))
        if thread:
            thread.start()
        try:
            out, err = p.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill_all(p.pid)
            out, err = p.communicate()
            err = f"no end after {limit_s} s"
        finally: # also after SIGTERM
            if p.poll() is None:
                kill_all(p.pid)
            stop.set()
            if thread:
                thread.join()
        if p.returncode:
            lines = [line for line in re.split("[\r\n]", err) if line.strip()]
            raise Failed(f"{' '.join((os.path.basename(argv[0]), *argv[1:4]))} …: {lines[-1][:160] if lines else p.returncode}")
        return out + err if with_messages else out

    def json_lines(self, argv, **how):
        return [json.loads(line) for line in self.run(argv, **how).splitlines() if line.startswith("{")]

    def attempt(self, what, call):
        """The value of call(), or None and a note."""
        try:
            return call()
        except (Failed, OSError, ValueError, KeyError, IndexError, StopIteration) as error:
            self.lack(f"{what}: {error}")
            return None


class Failed(Exception):
    pass


def descendants(pid):
    """(process, its page faults) of all below a process and itself, whatever their sessions are."""
    parents, faults = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            text = open(path).read()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2:].split()
        parents[int(text.split()[0])] = int(fields[1])
        faults[int(text.split()[0])] = int(fields[7]) + int(fields[9])
    found = []
    for p in parents:
        at = p
        while at in parents and at != pid:
            at = parents[at]
        if at == pid:
            found.append((p, faults[p]))
    return found


def kill_all(pid):
    for p, _ in descendants(pid):
        try:
            os.kill(p, signal.SIGKILL)
        except ProcessLookupError:
            pass


def spread(values):
    v = sorted(values)
    return {"median": statistics.median(v), "min": v[0], "max": v[-1], "n": len(v)}


# -- turns

def medians(dicts):
    """Per key the median of the numbers; of anything else the first."""
    out = dict(dicts[0])
    for key in out:
        found = [d[key] for d in dicts if isinstance(d.get(key), (int, float)) and not isinstance(d[key], bool)]
        if found:
            out[key] = statistics.median(found)
    return out


def mark(result):
    """Flags the result of a disturbed turn: a run, each of a list of rows, or each of an object's."""
    rows = result if isinstance(result, list) else list(result.values())
    for row in rows if all(isinstance(row, dict) for row in rows) else [result]:
        row["disturbed"] = True


def spreads(turns):
    """Flat results of several turns: the spread of each key, with the flag of a disturbed turn."""
    flag = {"disturbed": True} if turns[0].get("disturbed") else {}
    return {key: {**spread([turn[key] for turn in turns]), **flag} for key in turns[0] if key != "disturbed"}


def merge(runs):
    """One run of several turns: the median over the steps of all turns, and the rates that follow from it."""
    out, times = medians(runs), [t for r in runs for t in r["times_ms"]]
    out["step_ms"], out["turns"] = spread(times), len(runs)
    own = [statistics.median(r["times_ms"]) for r in runs]
    tokens = [r["tps"] * ms for r, ms in zip(runs, own) if r.get("tps")]
    if tokens and max(tokens) < 1.0001 * min(tokens): # steps of one size; otherwise a turn's rate is that of all its steps
        median = out["step_ms"]["median"]
        for key, power in ("tps", 1), ("mfu", 1), ("step_over_roofline", -1):
            found = [r[key] * (ms / median) ** power for r, ms in zip(runs, own) if r.get(key)]
            out[key] = statistics.median(found) if found else out.get(key)
    del out["times_ms"]
    return out


SLOWER = 1.1 # a contender that is slower by more in its first turn has no other


def is_beaten(b, name, rivals, turns):
    """Whether another of its rivals was faster by far in an undisturbed turn, and this one had one too."""
    speed = lambda other: max((result.get("tps") or 0 for result, *_ in b.undisturbed(turns[other])), default=0)
    return speed(name) > 0 and max(map(speed, rivals)) > SLOWER * speed(name)


def turns_of(b, calls, n, rivals=()):
    """
    calls: name -> call. A round makes all calls, kumi's and its peers', one after the other; n rounds. The machine's matrix peak is measured before and after
    each turn. Turns beside which it was more than 15 % off the section's median are discarded and repeated in at most EXTRA_ROUNDS more rounds, which end after
    half the time of the rounds before; a call that never ran undisturbed counts by its least disturbed turn, which is marked. rivals: lists of calls of which only the fastest counts; those that are far slower in their first
    turn have no other. Returns name -> (results, number of discarded turns).
    """
    turns, failed, begin, end = {name: [] for name in calls}, set(), time.monotonic(), None
    for i in range(n + b.extra):
        if i == n:
            end = time.monotonic() + max(EXTRA_SECONDS, EXTRA_TIME * (time.monotonic() - begin))
        beaten = {name for names in rivals for name in names if is_beaten(b, name, names, turns)} if i else ()
        left = [name for name in calls if name not in failed and name not in beaten and len(b.undisturbed(turns[name])) < n]
        before = b.peak() if left else None
        for name in left:
            if end and time.monotonic() > end:
                break
            b.say(f"{name}, turn {i + 1} of {n}" if i < n else f"{name}, again")
            result = b.attempt(name, calls[name])
            after = b.peak()
            if result:
                turns[name].append((result, before, after))
            else:
                failed.add(name)
            before = after
    kept = {name: b.undisturbed(found) or sorted(found, key=b.disturbance)[:1] for name, found in turns.items()}
    for name, found in turns.items():
        b.discarded += len(found) - len(kept[name])
        if found and not b.undisturbed(found):
            mark(kept[name][0][0])
            b.notes.append(f"{name}: no turn without disturbance; the least disturbed one counts, {100 * b.disturbance(kept[name][0]):.0f} % off the median peak")
            b.say(b.notes[-1])
    return {name: ([turn[0] for turn in kept[name]], len(found) - len(kept[name])) for name, found in turns.items()}


def take_turns(b, calls, most=None, rivals=()):
    """One run of each call: all its turns together. most: fewer turns, where one takes minutes."""
    found = turns_of(b, calls, min(b.turns, most or b.turns), rivals)
    return {name: {**merge(results), "discarded": discarded} if results else None for name, (results, discarded) in found.items()}


# -- kumi's trainings

def faults_of(pid):
    """Page faults of all descendants of a process."""
    return sum(faults for _, faults in descendants(pid))


def trial(b, config, n, threads, steps, sets=(), skip=3, around=None):
    """Speed, where the time went and what is held, of a short training. around: the command that starts it on several hosts, of one without -n."""
    out = f"{b.work}/run"
    shutil.rmtree(out, ignore_errors=True)
    argv = [b.kumi, "train", config, *(() if around else ("-n", str(n))), "--trial", "--out", out, "--until", str(steps)]
    for s in (f"train.threads={threads}", "train.log_every=0", *sets):
        argv += ["--set", s]
    seen = []

    def watch(pid, stop):
        while not stop.wait(0.2):
            seen.append((time.time(), faults_of(pid)))
    b.run(around(argv) if around else argv, watch=watch)
    ranks = [json.load(open(f"{out}/rank-{r}.json")) for r in range(n)]
    summary = json.load(open(f"{out}/summary.json"))
    mean = lambda key: statistics.mean(statistics.median(r[key][skip:]) for r in ranks)
    step = spread(ranks[0]["step_ms"][skip:])
    config_now = json.loads(b.run([b.kumi, "plan", config, "-n", str(n), "--json"] + sum((["--set", s] for s in sets), [])))
    length = sum(ranks[0]["step_ms"]) / 1e3
    window = [(t, f) for t, f in seen if seen[-1][0] - 0.5 * length < t < seen[-1][0] - 0.15 * length]
    faults = (window[-1][1] - window[0][1]) / ((window[-1][0] - window[0][0]) / step["median"] * 1e3) if len(window) > 2 else None
    scale = step["median"] / summary["median_step_ms"] if summary["median_step_ms"] else 0
    return {"step_ms": step, "times_ms": ranks[0]["step_ms"][skip:], "exposed_comm_ms": mean("exposed_comm_ms"), "wait_ms": mean("wait_ms"), "data_ms": mean("data_ms"),
            "tps": summary["median_tps"] / scale if scale else None, "mfu": summary["mfu"] / scale if scale and summary["mfu"] else None,
            "step_over_roofline": summary.get("step_over_roofline") and summary["step_over_roofline"] * scale,
            "planned_bytes": summary["memory_planned_bytes"], "pss_bytes": summary["memory_pss_bytes"],
            "host_bytes": config_now["host_bytes"], "faults_per_step": faults, "ranks": n, "threads": threads,
            "data_stalls": sum(d > 0.05 * step["median"] for d in ranks[0]["data_ms"][skip:])}


def peer(b, script, *args, malloc=None):
    """The last line of one of PyTorch's scripts. malloc: its environment; by default that of the fastest malloc."""
    if b.python is None:
        raise Failed("there is no PyTorch environment")
    cache = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_CACHE_DIR": b.work + "/inductor"} # later turns load what the first compiled
    return b.json_lines([b.python, script, *map(str, args)], limit_s=900, env={**(tuned_malloc() if malloc is None else malloc), **cache})[-1]


def torch(b, procs, threads, dtype, compiled, steps, *more, malloc=None):
    return peer(b, "bench/pytorch_gpt2.py", "--procs", procs, "--threads", threads, "--dtype", dtype, "--steps", steps, *more,
                *(["--compile"] if compiled else []), malloc=malloc)


def tuned_malloc():
    for name in "tcmalloc_minimal", "tcmalloc", "jemalloc":
        found = sorted(glob.glob(f"/usr/lib/*/lib{name}.so.[0-9]*") + glob.glob(f"/usr/lib64/lib{name}.so.[0-9]*"))
        if found:
            return {"LD_PRELOAD": found[0]}
    return {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31), "MALLOC_TOP_PAD_": str(64 * MIB)}


def compare(b, config, runs, torch_args, kumi_sets, kumi_steps, torch_steps, dtypes, **how):
    """kumi and every PyTorch, in turn on the same cores. runs: (processes, threads)."""
    calls = {}
    for dtype in dtypes:
        for n, threads in runs["kumi"]:
            calls[f"kumi {n}x{threads} {dtype}"] = partial(trial, b, config, n, threads, kumi_steps, (f"precision.compute={dtype}", *kumi_sets))
        for procs, threads in runs["torch"]:
            for compiled in both(b):
                calls[named(procs, threads, dtype, compiled)] = partial(torch, b, procs, threads, dtype, compiled, torch_steps, *torch_args)
    return take_turns(b, calls, **how)


def both(b):
    """Eager and compiled."""
    return (False,) if b.quick else (False, True)


def named(procs, threads, dtype, compiled, how=""):
    return f"torch {procs}x{threads} {dtype} {how}{'compiled' if compiled else 'eager'}"


# -- sections

def limits(b):
    rows = b.json_lines([b.kumi, "bench", "peak", "--threads", "2", "--json"])
    return {row["what"]: {key: row[key] for key in ("value", "unit", "median", "min", "max")} for row in rows}


def profile(b, config, sets):
    """Ops by shape above 1 % of a step of 2 ranks: (op and shapes, share of the step, share of the roofline)."""
    out = f"{b.work}/run"
    shutil.rmtree(out, ignore_errors=True)
    b.run([b.kumi, "train", config, "-n", "2", "--trial", "--out", out, "--until", "7", "--profile", "--profile-by", "shape",
           *sum((["--set", s] for s in ("train.threads=1", "train.log_every=0", *sets)), [])])
    rows = re.findall(r"^(.{44}) .* ([\d.]+) % +\S+ +\S+ +([\d.]+) %$", open(out + "/profile.txt").read(), re.M)
    return {" ".join(name.split()): {"share": float(share) / 100, "of_limit": float(of_limit) / 100} for name, share, of_limit in rows if float(share) > 1}


def ops(b):
    """Every workload's step, by its profile; the median of its turns."""
    data, calls, result = images_like_cifar10(b.work + "/cifar10"), {}, {}
    workloads = {"GPT-2 124M": (GPT2, ()), "nanoGPT": (NANO, ()), "Llama": (LLAMA, ())}
    if not b.quick:
        workloads["ResNet-18"] = (RESNET18, (f"data.train={data}", f"data.val={data}"))
        pairs = b.attempt("en-ja", lambda: sentence_pairs()[1])
        workloads.update({"en-ja": (ENJA, pairs)} if pairs else {})
    for name, (config, sets) in workloads.items():
        for dtype in "f32", "bf16":
            calls[f"{name} {dtype}"] = partial(profile, b, config, (f"precision.compute={dtype}", *sets))
    for name, (turns, _) in turns_of(b, calls, min(b.turns, 2)).items():
        ops_of_all = [op for op in turns[0] if all(op in turn for turn in turns)] if turns else []
        result[name] = {op: medians([turn[op] for turn in turns]) for op in ops_of_all}
    return result


def gpt2(b):
    """The memory of DDP is that of a run with glibc's malloc as it is: the fast ones keep what a program frees."""
    dtypes, steps = (("bf16",), 2) if b.quick else (("bf16", "f32"), 3)
    found = compare(b, GPT2, {"kumi": [(2, 1)], "torch": [(1, 2), (2, 1)]}, (), (), 6, steps, dtypes)
    for dtype in dtypes:
        run = found.get(named(2, 1, dtype, False))
        if run:
            plain = b.attempt(f"memory of DDP, {dtype}", partial(torch, b, 2, 1, dtype, False, steps, malloc={}))
            run["pss_bytes"] = plain and plain["pss_bytes"]
    return found


def accumulation(b):
    calls = {}
    for dtype in ("bf16",) if b.quick else ("bf16", "f32"):
        sets = [f"precision.compute={dtype}", "train.global_batch=32", "train.micro_batch=8"] + (["model.n_layer=1"] if b.quick else [])
        calls[f"kumi 2x1 {dtype}"] = partial(trial, b, GPT2, 2, 1, 4, sets, skip=1)
        for procs, threads in (1, 2), (2, 1):
            for compiled in both(b): # micro-batches as large as kumi's; a step takes half a minute, so one of a turn is enough
                calls[named(procs, threads, dtype, compiled)] = partial(torch, b, procs, threads, dtype, compiled, 1, "--batch", 16, "--accumulate", 2,
                                                                        "--warmup", 1, *(("--layers", 1) if b.quick else ()))
    return take_turns(b, calls, most=2)


def zero(b):
    """The stages of ZeRO in state of the ranks' own; with the state shared on the host, where all stages are one program; four shards on two ranks, added in
    a tree and as they come; gradients reduced in bf16; and PyTorch: FSDP2 with its defaults, DDP and FSDP2 with bf16 reductions."""
    calls, steps, own = {}, 4 if b.quick else 6, "parallel.host_state=private"
    kinds = {"shared": ("parallel.zero=3",)}
    kinds.update({f"stage {z}": (own, f"parallel.zero={z}") for z in range(4)})
    kinds["stage 0, recomputed"] = (*kinds["stage 0"], "memory.recompute=full")
    for order in "canonical", "free":
        kinds[f"4 shards {order}"] = ("train.virtual_shards=4", "train.micro_batch=1", f"parallel.order={order}")
    narrow = {f"reduced {kind}": (*kinds[kind], "precision.reduce=bf16") for kind in ("stage 0", "stage 3")}
    for dtype in ("bf16",) if b.quick else ("bf16", "f32"):
        for kind, sets in {**kinds, **(narrow if dtype == "bf16" else {})}.items():
            calls[f"kumi {kind} {dtype}"] = partial(trial, b, GPT2, 2, 1, steps, (f"precision.compute={dtype}", *sets))
        for compiled in both(b):
            for kind in ("full",) + (("reduced none", "reduced full") if dtype == "bf16" else ()):
                how = ("--shard", kind.split()[-1], *(("--reduce", "bf16") if kind.startswith("reduced") else ()))
                calls[f"torch {kind} {dtype} {'compiled' if compiled else 'eager'}"] = partial(torch, b, 2, 1, dtype, compiled, 2 if b.quick else 3, *how)
    return take_turns(b, calls, most=2)


def parallel(b):
    """One model over two ranks: tensor parallelism with whole and with divided sequences, and pipelines; against data parallelism with the same micro-batch, and
    PyTorch in the same layout. 16 sequences of 256 tokens. Micro-batches of 2; pipelines of both sides also with 4. Of the pipelines of each side the fastest counts."""
    kinds = {"dp": (), "tp": ("parallel.tp=2",), "tp-sp": ("parallel.tp=2", "parallel.sp=true")}
    kinds.update({f"pp {schedule}": ("parallel.pp=2", f"parallel.pp_schedule={schedule}") for schedule in ("1f1b", "zb-h2", "zb-v")})
    peers = {"tp": ("tp",), "tp-sp": ("tp-sp",), **{f"pp {schedule}": ("pp", "--schedule", schedule) for schedule in ("1f1b", "zb1p", "zbv")}}
    small, calls, rivals = ("model.n_layer=4",) if b.quick else (), {}, []
    for dtype in ("bf16",) if b.quick else ("bf16", "f32"):
        steps = 3 if b.quick else 5 if dtype == "bf16" else 4
        for micro, size in (2, ""), (4, " micro 4"):
            for kind, sets in kinds.items():
                if micro == 2 or not kind.startswith("tp"):
                    sets = (f"precision.compute={dtype}", "train.global_batch=16", f"train.micro_batch={micro}", "parallel.host_state=private", *sets, *small)
                    calls[f"kumi {kind}{size} {dtype}"] = partial(trial, b, GPT2, 2, 1, steps, sets, skip=1)
            for kind, how in peers.items():
                if micro == 2 or not kind.startswith("tp"):
                    how = ("--how", *how, "--micro", micro, "--dtype", dtype, "--steps", steps - 2, *(("--layers", 4) if b.quick else ()))
                    calls[f"torch {kind}{size} {dtype} eager"] = partial(peer, b, "bench/pytorch_parallel.py", *how)
        rivals += [[name for name in calls if name.startswith(f"{who} pp") and f" {dtype}" in name] for who in ("kumi", "torch")]
    return take_turns(b, calls, most=2, rivals=rivals)


def long(b):
    sets = ("train.global_batch=1", "data.seq_len=1024")
    return compare(b, GPT2, {"kumi": [(1, 2)], "torch": [(1, 2)]}, ("--batch", 1, "--tokens", 1024), sets, 5 if b.quick else 6,
                   2 if b.quick else 3, ("bf16",) if b.quick else ("bf16", "f32"), most=2)


def nanogpt(b):
    args = ("--batch", 12, "--tokens", 64, "--layers", 4, "--heads", 4, "--width", 128, "--vocab", 256)
    return compare(b, NANO, {"kumi": [(2, 1)], "torch": [(1, 2), (2, 1)]}, args, (), 30 if b.quick else 103, 10 if b.quick else 60,
                   ("f32", "bf16"))


def images_like_cifar10(folder):
    """CIFAR-10's files with noise for images: speed does not depend on them."""
    os.makedirs(folder, exist_ok=True)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        with open(f"{folder}/{name}.bin", "wb") as f:
            for i in range(10000):
                f.write(bytes([i % 10]) + os.urandom(3072))
    return folder


def resnet(b):
    """Images per second."""
    data, calls = images_like_cifar10(b.work + "/cifar10"), {}
    for dtype in ("bf16",) if b.quick else ("f32", "bf16"):
        sets = (f"precision.compute={dtype}", f"data.train={data}", f"data.val={data}")
        for n, threads in (2, 1), (1, 2):
            calls[f"kumi {n}x{threads} {dtype}"] = partial(trial, b, RESNET18, n, threads, 4 if b.quick else 6, sets)
            for compiled in both(b):
                calls[named(n, threads, dtype, compiled)] = partial(peer, b, "bench/pytorch_resnet.py", "speed", RESNET18, "--procs", n, "--threads", threads,
                                                                    "--dtype", dtype, "--steps", 2 if b.quick else 3, *(["--compile"] if compiled else []))
    return take_turns(b, calls, most=2)


def llama(b):
    """Tokens per second of a small Llama. PyTorch's model is that of its script, which needs no other package."""
    calls = {}
    for dtype in ("f32",) if b.quick else ("f32", "bf16"):
        for n, threads in (2, 1), (1, 2):
            calls[f"kumi {n}x{threads} {dtype}"] = partial(trial, b, LLAMA, n, threads, 20 if b.quick else 60, (f"precision.compute={dtype}",))
            for compiled in both(b):
                argv = ("speed", LLAMA, "--own", "--procs", n, "--threads", threads, "--dtype", dtype, "--steps", 10 if b.quick else 40)
                calls[named(n, threads, dtype, compiled)] = partial(peer, b, "bench/pytorch_llama.py", *argv, *(["--compile"] if compiled else []))
    return take_turns(b, calls)


def pairs_trial(b, n, threads, steps, sets, skip=6):
    """Target tokens a second of a short training on sentence pairs: steps differ in shape, so their sums count."""
    out = f"{b.work}/run"
    shutil.rmtree(out, ignore_errors=True)
    argv = [b.kumi, "train", ENJA, "-n", str(n), "--out", out, "--until", str(steps)]
    for s in (f"train.threads={threads}", "train.log_every=1", "train.eval_every=0", "checkpoint.every=0", *sets):
        argv += ["--set", s]
    b.run(argv)
    rows = [r for r in map(json.loads, open(out + "/metrics.jsonl")) if "step_ms" in r][skip:]
    return {"tps": 1e3 * sum(r["tokens"] for r in rows) / sum(r["step_ms"] for r in rows), "times_ms": [r["step_ms"] for r in rows],
            "mfu": statistics.median(r["mfu"] for r in rows if r.get("mfu")) if any(r.get("mfu") for r in rows) else None}


def sentence_pairs():
    """The folder of the corpus, which ENJA names, and the settings for it."""
    folder = os.environ.get("ENJA", "data/small_parallel_enja")
    if not os.path.exists(folder + "/train.en"):
        raise Failed(f"{folder}/train.en: not there; ENJA=DIR names the folder of small_parallel_enja")
    return folder, [f"data.{key}={folder}/{name}" for key, name in (("train", "train.en"), ("train_target", "train.ja"), ("val", "dev.en"),
                                                                    ("val_target", "dev.ja"))]


def enja(b):
    """The same batches' shapes on both sides."""
    folder, sets = sentence_pairs()
    text = b.run([b.kumi, "data", "verify", ENJA] + sum((["--set", s] for s in sets), []))
    shapes = ",".join("x".join(s) for s in re.findall(r"(\d+) x (\d+) x (\d+) \(", text))
    calls = {}
    for dtype in ("bf16",) if b.quick else ("bf16", "f32"):
        calls[f"kumi 2x1 {dtype}"] = partial(pairs_trial, b, 2, 1, 8 if b.quick else 40, [f"precision.compute={dtype}", *sets])
        for procs, threads in (1, 2), (2, 1):
            for compiled in both(b):
                argv = (ENJA, "--data", folder, "--shapes", shapes, "--procs", procs, "--threads", threads, "--dtype", dtype, "--steps", 2 if b.quick else 20)
                calls[named(procs, threads, dtype, compiled)] = partial(peer, b, "bench/pytorch_enja.py", *argv, *(["--compile"] if compiled else []))
    return take_turns(b, calls, most=2)


def canonical(row):
    """A line of `kumi bench comm` or of a peer, with the same names."""
    names = {"ping_pong": "send_recv"}
    name = row.get("collective", row.get("what"))
    return {"collective": names.get(name, name), "memory": row.get("memory", row.get("how")), "bytes": row.get("bytes", 0),
            "median_us": row.get("median_us", row.get("p50_ns", 0) * 1e-3),
            "dtype": row.get("dtype"), "ratio": row.get("ratio")}


def same_rows(turns):
    """Rows of several turns of one command as one: medians, of undisturbed turns where there are some."""
    found, keys = {}, ("collective", "memory", "bytes", "dtype")
    for row in turns:
        found.setdefault(tuple(row[k] for k in keys), []).append(row)
    return [{**medians([row for row in rows if not row.get("disturbed")] or rows), **dict(zip(keys, key))} for key, rows in found.items()]


def better(unbound, bound):
    """Of an MPI's rows with and without bound ranks the faster, one by one."""
    rows = {}
    for row in [{**r, "bound": False} for r in unbound or []] + [{**r, "bound": True} for r in bound or []]:
        key = row["collective"], row["bytes"]
        if key not in rows or row["median_us"] < rows[key]["median_us"]:
            rows[key] = row
    return list(rows.values())


def mpi_commands(b, most):
    """(name, command, command for calls of a few bytes) of each MPI that is there, with ranks bound to cores and unbound."""
    root = ["--allow-run-as-root", "--oversubscribe", "--bind-to"]
    for name, how in ("openmpi", {"unbound": root + ["none"], "bound": root + ["core:overload-allowed"]}), \
                     ("mpich", {"unbound": ["-bind-to", "none"], "bound": ["-bind-to", "core"]}):
        mpicc, mpirun, program = f"mpicc.{name}", f"mpirun.{name}", f"{b.work}/mpi_{name}"
        if not shutil.which(mpicc):
            b.lack(f"{name}: there is no {mpicc}: apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev")
            continue
        if b.attempt(name, lambda: b.run([mpicc, "-O2", "-o", program, "bench/mpi_comm.c"])) is None:
            continue
        for n in (2,) if b.quick else (2, 4):
            for binding, more in how.items():
                start = [mpirun, *more, "-n", str(n), program]
                yield f"{name} {n} {binding}", start + [most if n == 2 else str(MIB)], start + ["8"] if n == 2 else None


def comm(b):
    """kumi, the MPIs and Gloo in turn. Calls of a few bytes take more turns: how long a line travels between cores changes by a factor of three from second
    to second."""
    most, bench = str(MIB if b.quick else 256 * MIB), [b.kumi, "bench", "comm"]
    commands = [("kumi 2", [*bench, "-n", "2", "--json"], [*bench, "-n", "2", "--bytes", "8", "--json"]),
                ("kumi 4", [*bench, "all_reduce", "-n", "4", "--bytes", str(MIB), "--json"], None), ("kumi 8", [*bench, "barrier", "-n", "8", "--json"], None)]
    if not b.quick: # in addition to the default sizes of `kumi bench comm`
        commands.append(("kumi 2 largest", [*bench, "all_reduce", "-n", "2", "--bytes", most, "--json"], None))
    commands += mpi_commands(b, most)
    if b.python:
        commands.append(("gloo 2", [b.python, "bench/gloo_comm.py", "--most", most], None))
    rows = lambda argv, limit_s: [canonical(r) for r in b.json_lines(argv, limit_s=limit_s) if "error" not in r]
    turns = turns_of(b, {name: partial(rows, argv, 240) for name, argv, _ in commands}, b.turns)
    small = turns_of(b, {name: partial(rows, argv, 60) for name, _, argv in commands if argv}, 0 if b.quick else 6)
    found = {name: sum(results + small.get(name, ([], 0))[0], []) for name, (results, _) in turns.items()}
    found["kumi 2"] += found.pop("kumi 2 largest", [])
    result = {name: same_rows(rows) for name, rows in found.items()}
    for name in [name.removesuffix(" unbound") for name in result if name.endswith(" unbound")]:
        result[name] = better(result.pop(name + " unbound"), result.pop(name + " bound"))
    return result


def weights_per_token():
    """Bytes of the weights that a token of GPT-2 124M reads in bf16: all but the positions, of which it reads one row."""
    m = json.load(open(GPT2))["model"]
    d, layers = m["n_embd"], m["n_layer"]
    return 2 * (m["vocab_size"] * d + layers * (12 * d * d + 13 * d) + 3 * d)


def sample(b):
    """Tokens per second of one sequence in bf16, behind the prompt, with random weights."""
    run, tokens = f"{b.work}/sampled", 16 if b.quick else 128
    b.run([b.kumi, "train", GPT2, "-n", "2", "--out", run, "--until", "1", "--set", "train.threads=1", "--set", "train.eval_tokens=512"])

    def kumi():
        text = b.run([b.kumi, "sample", run, "--dtype", "bf16", "--temperature", "0", "--tokens", str(tokens)], with_messages=True)
        tps, ms = re.search(r"^decode: .* ([\d.]+) tokens/s, ([\d.]+) ms per step$", text, re.M).groups()
        return {"tps": float(tps), "times_ms": [float(ms)]}

    calls = {"kumi bf16": kumi}
    for compiled in both(b):
        calls[f"torch 1x2 bf16 {'compiled' if compiled else 'eager'}"] = partial(peer, b, "bench/pytorch_sample.py", "--tokens", tokens,
                                                                                 *(["--compile"] if compiled else []))
    llama_cpp, model = os.environ.get("LLAMA_CPP"), os.environ.get("LLAMA_CPP_MODEL")
    if llama_cpp and model:
        def cpp():
            row = json.loads(b.run([llama_cpp, "-m", model, "-p", "0", "-n", str(tokens), "-t", "2", "-r", "1", "-o", "json"]))[0]
            return {"tps": row["avg_ts"], "times_ms": [1e3 / row["avg_ts"]]}
        calls["llama.cpp"] = cpp
    else:
        b.lack("llama.cpp: LLAMA_CPP=PATH of llama-bench and LLAMA_CPP_MODEL=FILE.gguf name it")
    result = take_turns(b, calls)
    shutil.rmtree(run, ignore_errors=True)
    return {**result, "roofline": {"bytes": weights_per_token(), "read": limits(b)["read"]["value"]}}


def start(b):
    """From the command to the begin of the first step, and what the compiler takes of it."""
    out = f"{b.work}/run"

    def once():
        begin, first = time.time(), []
        b.run([b.kumi, "plan", GPT2, "-n", "2", "--json"])
        plan_s = time.time() - begin
        shutil.rmtree(out, ignore_errors=True)

        def watch(_, stop):
            while not stop.wait(0.005) and not first:
                try:
                    line = open(f"{out}/metrics.jsonl").readline()
                except OSError:
                    continue
                if line.endswith("\n"):
                    first.append(time.time() - json.loads(line)["step_ms"] / 1e3)
        begin = time.time()
        b.run([b.kumi, "train", GPT2, "-n", "2", "--trial", "--out", out, "--until", "1", "--set", "train.threads=1", "--set", "train.log_every=1"], watch=watch)
        return {"first_step_s": first[0] - begin, "plan_s": plan_s}
    found = turns_of(b, {"start": once}, 1 if b.quick else 5)["start"][0]
    return spreads(found)


def drop_cache(folder):
    for path in glob.glob(folder + "/**/*", recursive=True):
        if os.path.isfile(path):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def checkpoint(b):
    """Writing as seen from outside: from the first to the last name of a checkpoint. Reading: `kumi ckpt verify`."""
    out, sizes = f"{b.work}/run", ["--set", "model.n_layer=1"] if b.quick else []

    def once():
        shutil.rmtree(out, ignore_errors=True)
        seen, to = {}, b.work + "/dd"

        def watch(_, stop):
            while not stop.wait(0.002):
                names = os.listdir(out + "/checkpoints") if os.path.isdir(out + "/checkpoints") else []
                if names:
                    seen.setdefault("first", time.time())
                if any(re.fullmatch(r"step-\d+", n) for n in names):
                    seen.setdefault("last", time.time())
        b.run([b.kumi, "train", GPT2, "-n", "2", "--out", out, "--until", "1", "--set", "train.threads=1", "--set", "train.eval_tokens=512",
               *sizes], watch=watch)
        files = [p for p in glob.glob(out + "/checkpoints/**/*", recursive=True) if os.path.isfile(p)]
        size, source = sum(map(os.path.getsize, files)), max(files, key=os.path.getsize)

        def rate(argv, bytes_moved):
            begin = time.time()
            b.run(argv)
            return bytes_moved / (time.time() - begin)

        def dd(*how, of="/dev/null"):
            if of == "/dev/null":
                drop_cache(out)
            found = rate(["dd", "if=" + source, "of=" + of, "bs=4M", *how], os.path.getsize(source))
            if of == to:
                os.unlink(to)
            return found
        drop_cache(out)
        return {"bytes": size, "save": size / (seen["last"] - seen["first"]), "load": rate([b.kumi, "ckpt", "verify", out], size),
                "dd fsync": dd("conv=fsync", of=to), "dd direct": dd("oflag=direct", "conv=fsync", of=to), "read": dd(), "read direct": dd("iflag=direct")}
    found = turns_of(b, {"checkpoint": once}, 1 if b.quick else 5)["checkpoint"][0]
    result = spreads(found)
    result["bytes"] = found[0]["bytes"]
    result["async"] = b.attempt("checkpoints in the background", lambda: asynchronous(b, sizes))
    return result


def asynchronous(b, sizes):
    """Steps of a run that writes checkpoints meanwhile."""
    out = f"{b.work}/run"
    shutil.rmtree(out, ignore_errors=True)
    b.run([b.kumi, "train", GPT2, "-n", "2", "--out", out, "--until", "16", "--set", "train.threads=1", "--set", "checkpoint.async=true",
           "--set", "checkpoint.every=5", "--set", "train.log_every=1", "--set", "train.eval_tokens=512", *sizes])
    rows = [json.loads(line) for line in open(out + "/metrics.jsonl")]
    steps = [r["step_ms"] for r in rows if "step_ms" in r][2:]
    return {"step_ms": spread(steps)}


def loader(b):
    run = trial(b, NANO, 2, 1, 50 if b.quick else 1003, ("train.steps=2000",))
    return {"times": run["step_ms"]["median"] / run["data_ms"], "stalls": run["data_stalls"], "steps": run["step_ms"]["n"]}


# with minutes on two cores of a Zen 4, of which compiling takes some in a first turn
SECTIONS = {f.__name__: (f, minutes) for f, minutes in ((limits, 0.2), (ops, 4), (comm, 8), (gpt2, 13), (accumulation, 22), (zero, 13), (parallel, 18), (long, 6), (nanogpt, 5),
                                                        (llama, 6), (enja, 8), (resnet, 8), (sample, 3), (start, 0.5), (checkpoint, 3), (loader, 1))}
