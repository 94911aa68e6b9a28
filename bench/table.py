# SPDX-License-Identifier: Apache-2.0
"""The table of docs/reference/performance.md from the results of bench/performance.py: a row a target."""
MIB = 1 << 20
SIZES = {8: "8 B", 65536: "64 KiB", MIB: "1 MiB", 64 * MIB: "64 MiB", 256 * MIB: "256 MiB"}


class Results:
    def __init__(self, files):
        self.files = files

    def of(self, section):
        return (self.files.get(section) or {}).get("data") or {}

    def is_amx(self):
        return any(f["machine"]["isa"] == "amx" for f in self.files.values())

    def tps(self, section, name):
        return (self.of(section).get(name) or {}).get("tps")

    def best(self, section, begin, dtype, end=""):
        """The fastest PyTorch whose name begins and ends so."""
        rows = [v["tps"] for k, v in self.of(section).items() if v and k.startswith("torch " + begin) and f" {dtype} " in k and k.endswith(end)]
        return max(rows, default=None)

    def comm(self, who, collective, size, memory=None, dtype=None, key="median_us"):
        """The first such row's median in µs, or another key."""
        for r in self.of("comm").get(who) or []:
            if r["collective"] == collective and r["bytes"] == size and memory in (None, r["memory"]) and dtype in (None, r["dtype"]):
                return r[key]
        return None

    def kumi(self, collective, size, n=2):
        """The best of kumi's memories: small vectors ride inline, large ones are owned."""
        found = [self.comm(f"kumi {n}", collective, size, m) for m in ("inline", "owned", "program", None)]
        return min((f for f in found if f is not None), default=None)


def ratio(a, b):
    return a / b if a is not None and b else None


def least(*values):
    return min(values) if values and all(v is not None for v in values) else None


def at_least(label, value, target):
    return label, value, target, value is not None and value >= target, f"{value:.2f}" if value is not None else None


def at_most(label, value, target, digits=2):
    return label, value, target, value is not None and value <= target, f"{value:.{digits}f}" if value is not None else None


def percent_at_least(label, value, target):
    return label, value, target, value is not None and value >= target, f"{100 * value:.1f} %" if value is not None else None


def percent_at_most(label, value, target):
    return label, value, target, value is not None and value <= target, f"{100 * value:.1f} %" if value is not None else None


def gpt2_speed(r):
    part, deep = r.of("gpt2"), r.of("accumulation")
    checks = []
    for dtype in "bf16", "f32":
        small, large = part.get(f"kumi 2x1 {dtype}") or {}, deep.get(f"kumi {dtype}") or {}
        if not r.is_amx():
            checks.append(percent_at_least(f"{dtype} 1,024 tokens", small.get("mfu"), 0.84))
        checks.append(percent_at_least(f"{dtype} 8,192 tokens", large.get("mfu"), 0.40 if r.is_amx() else 0.90))
        for tokens, run in ("1,024", small), ("8,192", large):
            checks.append(at_most(f"step / T, {dtype} {tokens}", run.get("step_over_roofline"), 1 / 0.85))
    return checks


def pytorch(r):
    if r.is_amx():
        deep = lambda begin, dtype, target: at_least(f"{begin or 'best'} {dtype}, 8,192 tokens", ratio(
            r.tps("accumulation", f"kumi {dtype}"), r.best("accumulation", begin, dtype)), target)
        return [deep("", "bf16", 2), deep("2x1", "bf16", 3)]
    checks = []
    for dtype, best, ddp in ("bf16", 1.15, 1.45), ("f32", 1.08, 1.25):
        mine = r.tps("gpt2", f"kumi 2x1 {dtype}")
        checks += [at_least(f"best {dtype}", ratio(mine, r.best("gpt2", "", dtype)), best),
                   at_least(f"DDP {dtype}", ratio(mine, r.best("gpt2", "2x1", dtype)), ddp)]
    return checks


def zero(r):
    """Of stage 0; of FSDP2 with its defaults, the better of eager and compiled, in the same precision and with the same reductions."""
    checks, fsdp = [], 3 if r.is_amx() else 1.55
    for dtype in "bf16", "f32":
        tps = lambda kind: r.tps("zero", f"kumi {kind} {dtype}")
        checks += [at_least(f"stage {z} {dtype}", ratio(tps(f"stage {z}"), tps("stage 0")), 0.93 if z == 3 else 0.98) for z in (1, 2, 3)]
        checks += [at_least(f"full recomputation {dtype}", ratio(tps("stage 0, recomputed"), tps("stage 0")), 0.75),
                   at_least(f"canonical × free order {dtype}", ratio(tps("4 shards canonical"), tps("4 shards free")), 0.95),
                   at_least(f"stage 3 shared {dtype}", ratio(tps("shared"), tps("stage 0")), 0.93),
                   at_least(f"stage 3 × FSDP2 {dtype}", ratio(tps("stage 3"), r.best("zero", "full", dtype)), fsdp)]
    narrow = lambda kind: r.tps("zero", f"kumi reduced {kind} bf16")
    checks += [at_least("stage 3 × FSDP2, reduced in bf16", ratio(narrow("stage 3"), r.best("zero", "reduced full", "bf16")), 1),
               at_least("stage 0 × DDP, reduced in bf16", ratio(narrow("stage 0"), r.best("zero", "reduced none", "bf16")), 1)]
    return checks


def long(r):
    return [at_least(dtype, ratio(r.tps("long", f"kumi 1x2 {dtype}"), r.best("long", "", dtype)), 1.2) for dtype in ("bf16", "f32")]


def nanogpt(r):
    f32, bf16 = (r.tps("nanogpt", f"kumi 2x1 {d}") for d in ("f32", "bf16"))
    return [at_least("f32, eager", ratio(f32, r.best("nanogpt", "", "f32", "eager")), 1.6),
            at_least("f32, DDP eager", ratio(f32, r.best("nanogpt", "2x1", "f32", "eager")), 1.6),
            at_least("f32, compiled", ratio(f32, r.best("nanogpt", "", "f32", "compiled")), 1.4),
            at_least("bf16", ratio(bf16, r.best("nanogpt", "", "bf16")), 2.2)]


def llama(r):
    checks = []
    for dtype in "f32", "bf16":
        ddp = r.tps("llama", f"kumi 2x1 {dtype}")
        either = max((x for x in (ddp, r.tps("llama", f"kumi 1x2 {dtype}")) if x), default=None)
        checks += [at_least(f"best {dtype}", ratio(either, r.best("llama", "", dtype)), 1),
                   at_least(f"DDP {dtype}", ratio(ddp, r.best("llama", "2x1", dtype)), 1)]
    return checks


def resnet(r):
    """At 3.34 GFLOP an image; `mfu` counts padding as everybody does."""
    checks = []
    for dtype, best in ("f32", 1.0), ("bf16", 1.08):
        mine = r.of("resnet").get(f"kumi 2x1 {dtype}") or {}
        either = max((x for x in (mine.get("tps"), r.tps("resnet", f"kumi 1x2 {dtype}")) if x), default=None)
        checks += [percent_at_least(f"{dtype}, of the matrix peak", mine.get("mfu"), 0.88),
                   at_least(f"× PyTorch's best, {dtype}", ratio(either, r.best("resnet", "", dtype)), best),
                   at_least(f"× DDP, {dtype}", ratio(mine.get("tps"), r.best("resnet", "2x1", dtype)), best)]
    return checks


def enja(r):
    return [at_least(dtype, ratio(r.tps("enja", f"kumi 2x1 {dtype}"), r.best("enja", "", dtype)), 1.5) for dtype in ("bf16", "f32")]


def ops(r):
    checks = []
    for dtype, rows in r.of("ops").items():
        for op, row in rows.items():
            if row["share"] > 0.01 and row["operands"] == "memory":
                checks.append(percent_at_least(f"{op} {dtype}", row["of_limit"], 0.8 if op == "adamw" else 0.7))
    missed = [c for c in checks if not c[3]]
    counted = at_least("ops at their mark", len(checks) - len(missed), len(checks))
    return [(*counted[:4], f"{len(checks) - len(missed)} of {len(checks)}")] + missed if checks else [at_least("ops", None, 0)]


def weak_kernels(r):
    """Where a library was weak: transposed weight gradients, the head's input gradient."""
    rows = r.of("ops").get("bf16") or {}
    return [percent_at_least(op, (rows.get(op) or {}).get("of_limit"), 0.7)
            for op in ("linear_dw.fc", "linear_dw.out", "linear_dw.head", "linear_dx.head")]


def first_step(r):
    start, touch = r.of("start"), (r.of("limits").get("first touch") or {}).get("value")
    allowed = 1 + start["host_bytes"] / touch if start and touch else None
    return [at_most("seconds / allowed", ratio((start.get("first_step_s") or {}).get("median"), allowed), 1),
            at_most("compile and plan, s", (start.get("plan_s") or {}).get("median"), 0.3)]


def collectives(r):
    mpi = lambda what, size: min((t for t in (r.comm(f"{m} 2", what, size) for m in ("openmpi", "mpich")) if t), default=None)
    checks = []
    for size in 64 * MIB, 256 * MIB:
        mine = r.comm("kumi 2", "all_reduce", size, "owned")
        checks += [percent_at_least(f"all-reduce {SIZES[size]}, of its roofline", r.comm("kumi 2", "all_reduce", size, "owned", key="ratio"), 0.85),
                   at_least(f"× MPI, {SIZES[size]}", ratio(mpi("all_reduce", size), mine), 5),
                   at_least(f"× Gloo, {SIZES[size]}", ratio(r.comm("gloo 2", "all_reduce", size), mine), 8)]
    for size, target in (65536, 4), (MIB, 2.5):
        checks.append(at_least(f"× MPI, {SIZES[size]}", ratio(mpi("all_reduce", size), r.kumi("all_reduce", size)), target))
    checks += [at_most("8 B, µs", r.kumi("all_reduce", 8), 0.4), at_least("× MPI, 8 B", ratio(mpi("all_reduce", 8), r.kumi("all_reduce", 8)), 1),
               at_most("barrier, µs", r.kumi("barrier", 0), 0.3)]
    for what in "reduce_scatter", "all_gather", "send_recv", "broadcast":
        for size in 8, 65536, MIB, 64 * MIB:
            checks.append(at_least(f"{what} × MPI, {SIZES[size]}", ratio(mpi(what, size), r.kumi(what, size)),
                                   0.9 if what == "broadcast" and size == 8 else 1))
    wide, narrow = (r.comm("kumi 2", "all_reduce", 64 * MIB, "owned", d) for d in (None, "bf16"))
    return checks + [at_least("bf16 elements/s × f32's", 2 * ratio(wide, narrow) if narrow else None, 1.8)]


def crowded(r):
    return [at_most("8 ranks, barrier, µs", r.kumi("barrier", 0, 8), 20, 1),
            at_least("4 ranks, all-reduce 1 MiB × Open MPI", ratio(r.comm("openmpi 4", "all_reduce", MIB), r.kumi("all_reduce", MIB, 4)), 2)]


def exposed(r):
    checks = []
    for dtype in "bf16", "f32":
        run = r.of("gpt2").get(f"kumi 2x1 {dtype}") or {}
        share = ratio(run.get("exposed_comm_ms"), (run.get("step_ms") or {}).get("median"))
        checks.append(percent_at_most(f"{dtype}, of the step", share, 0.04))
    return checks


def bookkeeping(r):
    found = r.comm("kumi 2", "bookkeeping", 0)
    return [at_most("ns an operation", found and found * 1e3, 50, 0)]


def memory(r):
    checks = []
    for dtype in "bf16", "f32":
        run = r.of("gpt2").get(f"kumi 2x1 {dtype}") or {}
        allowed = run["planned_bytes"] * 1.02 + 16 * MIB + 8 * MIB * run["ranks"] if run else None
        peers = [v["pss_bytes"] for k, v in r.of("gpt2").items() if v and k.startswith("torch 2x1") and f" {dtype} eager" in k]
        checks += [at_most(f"Σ Pss / allowed, {dtype}", ratio(run.get("pss_bytes"), allowed), 1, 3),
                   at_most(f"of PyTorch DDP's, {dtype}", ratio(run.get("pss_bytes"), min(peers, default=None)), 0.6),
                   at_most(f"page faults a step, {dtype}", run.get("faults_per_step"), 0, 1)]
    return checks


def loader(r):
    run = r.of("loader")
    return [at_least("× the trainer", run.get("times"), 200), at_most(f"stalls in {run.get('steps', 1000)} steps", run.get("stalls"), 0, 0)]


def checkpoints(r):
    run = r.of("checkpoint")
    rate = lambda name: (run.get(name) or {}).get("median")
    write = max((x for x in (rate("dd fsync"), rate("dd direct")) if x), default=None)
    read = max((x for x in (rate("read"), rate("read direct")) if x), default=None)
    steps = (run.get("async") or {}).get("step_ms")
    allowed = 1.05 * steps["median"] + 1e3 * run["bytes"] / write if steps and write else None
    return [percent_at_least("save, of dd", ratio(rate("save"), write), 0.8), percent_at_least("load, of reading", ratio(rate("load"), read), 0.8),
            at_most("longest step meanwhile / allowed", ratio(steps and steps["most"], allowed), 1)]


ROWS = [("GPT-2 124M: share of the matrix peak, step time over the roofline T", gpt2_speed),
        ("GPT-2 124M against PyTorch", pytorch),
        ("GPT-2 124M, stages of ZeRO against stage 0; against FSDP2", zero),
        ("One sample of 1,024 tokens, 1 rank × 2 threads, against PyTorch's best", long),
        ("nanoGPT's CPU setting against PyTorch", nanogpt),
        ("Llama, 1.6 M parameters, 1,024 tokens a step, against PyTorch", llama),
        ("English-Japanese Transformer against PyTorch's best, target tokens/s", enja),
        ("ResNet-18 for 32 x 32, batch 128, against PyTorch", resnet),
        ("Every op above 1 % of the step: share of its roofline", ops),
        ("Kernels that libraries leave weak: share of their roofline", weak_kernels),
        ("Start of the first step", first_step),
        ("Collectives of 2 ranks", collectives),
        ("4 and 8 ranks on 2 cores", crowded),
        ("Exposed communication, GPT-2 124M on 2 ranks", exposed),
        ("Bookkeeping of a collective", bookkeeping),
        ("Memory, GPT-2 124M on 2 ranks", memory),
        ("Loader", loader),
        ("Checkpoints", checkpoints)]


def lines_of(files):
    r = Results(files)
    for name, row in ROWS:
        checks = row(r)
        met, missed, none = ([c for c in checks if kind(c)] for kind in (lambda c: c[3], lambda c: c[1] is not None and not c[3],
                                                                         lambda c: c[1] is None))
        verdict = "**missed**" if missed else "not measured" if not met else "met" if not none else "met where measured"
        yield name, checks, verdict


def target_of(check):
    label, value, target, is_met, text = check
    if isinstance(target, float) and (text or "").endswith("%"):
        return f"{100 * target:.0f} %"
    return f"{target:.2f}".rstrip("0").rstrip(".")


def markdown(files):
    if not files:
        return "Nothing was measured yet.\n"
    any_of = next(iter(files.values()))
    machine = any_of["machine"]
    out = [f"{machine['cpu']} ({machine['isa']}), CPUs {', '.join(map(str, machine['cpus']))}; "
           f"{' to '.join(sorted({min(f['date'] for f in files.values()), max(f['date'] for f in files.values())}))}; "
           + ", ".join(f"{k} {v}" for k, v in versions(files).items() if v) + "."]
    if any(f["quick"] for f in files.values()):
        out.append("**A trial of the scripts with few steps: these figures mean nothing.**")
    out += ["", comparison(files), "", "| | measured (target) | |", "|---|---|---|"]
    for name, checks, verdict in lines_of(files):
        cells = [f"{label} {text if text is not None else '–'} ({target_of((label, v, t, m, text))})" for label, v, t, m, text in checks]
        out.append(f"| {name} | {'; '.join(cells)} | {verdict} |")
    lacks = [f"{name}: {note}" for name, f in files.items() for note in f["not_measured"]]
    if lacks:
        out += ["", "Not measured:", ""] + [f"* {note}" for note in lacks]
    return "\n".join(out) + "\n" + details(files)


def comparison(files):
    """Tokens per second beside PyTorch: a block of its own, which README repeats."""
    r = Results(files)
    out = ["<!-- measured:comparison -->",
           "| tokens a second | kumi, 2 ranks × 1 thread | PyTorch DDP over Gloo, 2 × 1 | PyTorch, 1 process × 2 threads |",
           "|---|--:|--:|--:|"]
    for section, title in ("gpt2", "GPT-2 124M, 1,024 tokens a step"), ("nanogpt", "nanoGPT's CPU setting"):
        for dtype in "f32", "bf16":
            cells = [r.tps(section, f"kumi 2x1 {dtype}"), r.best(section, "2x1", dtype), r.best(section, "1x2", dtype)]
            out.append(f"| {title}, {dtype} | " + " | ".join(f"{c:,.0f}" if c else "–" for c in cells) + " |")
    return "\n".join(out + ["<!-- /measured -->"])


def versions(files):
    merged = {}
    for f in files.values():
        for k, v in f["machine"]["versions"].items():
            merged[k] = v or merged.get(k)
    return merged


def details(files):
    """What the ratios are made of: limits, and tokens per second of everybody."""
    r, out = Results(files), []
    if r.of("limits"):
        out += ["", "| limit | | median | least | most |", "|---|--:|--:|--:|--:|"]
        for name, row in r.of("limits").items():
            out.append(f"| {name} | {row['value'] * 1e-9:.1f} G{row['unit']} | " + " | ".join(f"{row[k] * 1e-9:.1f}" for k in ("median", "least", "most")) + " |")
    names = {"gpt2": "GPT-2 124M, 1,024 tokens", "accumulation": "GPT-2 124M, 8,192 tokens", "zero": "ZeRO, 1,024 tokens", "long": "one sample of 1,024 tokens",
             "nanogpt": "nanoGPT's CPU setting", "llama": "Llama, 1.6 M parameters", "enja": "English-Japanese Transformer", "resnet": "ResNet-18, 128 images"}
    rows = [("ResNet-20, 128 images" if who.startswith("small ") else title, who.removeprefix("small "), run)
            for key, title in names.items() for who, run in r.of(key).items() if run]
    if rows:
        out += ["", "| | | tokens/s, images/s | step ms | least | most | steps |", "|---|---|--:|--:|--:|--:|--:|"]
    for title, who, run in rows:
        s = run["step_ms"] if isinstance(run["step_ms"], dict) else {"median": run["step_ms"], "least": run["least_ms"], "most": run["most_ms"], "n": run["steps"]}
        who = who.replace("torch", "PyTorch")
        out.append(f"| {title} | {who} | {run['tps'] or 0:,.0f} | {s['median']:.1f} | {s['least']:.1f} | {s['most']:.1f} | {s['n']} |")
    who = [w for w in ("kumi 2", "openmpi 2", "mpich 2", "gloo 2") if r.of("comm").get(w)]
    if who:
        out += ["", "| 2 ranks, median µs | | " + " | ".join(w[:-2] for w in who) + " |", "|---|---|" + "--:|" * len(who)]
    for what in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "send_recv") if who else ():
        for size, title in SIZES.items():
            cells = [r.kumi(what, size) if w == "kumi 2" else r.comm(w, what, size) for w in who]
            out.append(f"| {what} | {title} | " + " | ".join(f"{c:,.2f}" if c else "–" for c in cells) + " |")
    return "\n".join(out) + "\n" if out else ""
