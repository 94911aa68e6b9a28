# SPDX-License-Identifier: Apache-2.0
"""The table of a kind of CPU from the results of bench/performance.py: a row a target."""
MIB = 1 << 20
SHOWN = {"tps", "step_ms", "mfu", "step_over_roofline", "turns", "discarded", "exposed_comm_ms", "planned_bytes", "pss_bytes", "ranks",
         "faults_per_step", "far_bytes", "disturbed"} # of a run
is_unused = lambda row: isinstance(row, dict) and row.get("dtype") == "bf16" and row["collective"] != "all_reduce" # of the rows of collectives
OP_MARK = 0.7 # of its roofline, for ops above 1 % of a step
SIZES = {8: "8 B", 65536: "64 KiB", MIB: "1 MiB", 64 * MIB: "64 MiB", 256 * MIB: "256 MiB"}


class Disturbed(float):
    """A figure of a turn on a disturbed machine, and what is computed from it: neither meets a target nor misses it."""


for _name in "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv":
    setattr(Disturbed, f"__{_name}__", lambda a, b, of=getattr(float, f"__{_name}__"): Disturbed(of(a, b)))


def flagged(value, is_disturbed=False):
    """A section's data with the figures of disturbed turns as such."""
    if isinstance(value, dict):
        is_disturbed = is_disturbed or value.get("disturbed", False)
        return {k: flagged(v, is_disturbed) for k, v in value.items()}
    if isinstance(value, list):
        return [flagged(v, is_disturbed) for v in value]
    return Disturbed(value) if is_disturbed and isinstance(value, float) else value


class Results:
    def __init__(self, store):
        self.sections = {name: {**s, "data": flagged(s["data"])} for name, s in store["sections"].items()}
        self.is_amx = store["isa"] == "amx"
        self.is_intel, self.is_zen4 = "Intel" in store["cpu"], "AMD" in store["cpu"] and store["isa"] == "avx512bf16"

    def of(self, section):
        return (self.sections.get(section) or {}).get("data") or {}

    def tps(self, section, name):
        return (self.of(section).get(name) or {}).get("tps")

    def best(self, section, begin, dtype, end=""):
        """The fastest PyTorch whose name begins and ends so."""
        rows = [v["tps"] for k, v in self.of(section).items() if v and k.startswith("torch " + begin) and f" {dtype} " in k and k.endswith(end)]
        return max(rows, default=None)

    def fastest(self, section, dtype):
        """The faster of kumi's parallel layouts."""
        return max((x for x in (self.tps(section, f"kumi {layout} {dtype}") for layout in ("2x1", "1x2")) if x), default=None)

    def comm(self, who, collective, size, memory=None, dtype=None, key="median_us"):
        """The first such row's median in µs, or another key."""
        for r in self.of("comm").get(who) or []:
            if r["collective"] == collective and r["bytes"] == size and memory in (None, r.get("memory")) and dtype in (None, r.get("dtype")):
                return r.get(key)
        return None

    def kumi(self, collective, size, n=2):
        """The best of kumi's memories: small vectors ride inline, large ones are owned."""
        found = [self.comm(f"kumi {n}", collective, size, m) for m in ("inline", "owned", "program", None)]
        return min((f for f in found if f is not None), default=None)


def ratio(a, b):
    return a / b if a is not None and b else None


def least(*values):
    return min(values) if values and all(v is not None for v in values) else None


def judged(value, is_met):
    """None: a figure of a disturbed turn."""
    return None if isinstance(value, Disturbed) else value is not None and is_met(value)


def at_least(label, value, target):
    return label, value, target, judged(value, lambda v: v >= target), f"{value:.2f}" if value is not None else None


def at_most(label, value, target, digits=2):
    return label, value, target, judged(value, lambda v: v <= target), f"{value:.{digits}f}" if value is not None else None


def percent_at_least(label, value, target):
    return label, value, target, judged(value, lambda v: v >= target), f"{100 * value:.1f} %" if value is not None else "%"


def percent_at_most(label, value, target):
    return label, value, target, judged(value, lambda v: v <= target), f"{100 * value:.1f} %" if value is not None else "%"


def figure(label, value, text="{:.2f}"):
    """Without a target."""
    return label, value, None, None, text.format(value) if value is not None else None


def gpt2_speed(r):
    checks = []
    for dtype in "bf16", "f32":
        for tokens, section, target in ("1,024", "gpt2", 0.84), ("8,192", "accumulation", 0.9):
            run = r.of(section).get(f"kumi 2x1 {dtype}") or {}
            checks += [percent_at_least(f"{dtype} {tokens} tokens", run.get("mfu"), 0.4 if r.is_amx and dtype == "bf16" else target)]
            share = (r.sections.get(section) or {}).get("peak_shares", {}).get(dtype)
            if share and run.get("mfu"): # the limit is the highest peak ever measured here; a virtual machine may be slower for hours
                checks += [figure("of the peak beside its turns", 100 * run["mfu"] / share, "{:.1f} %")]
            checks += [at_most(f"step / T, {dtype} {tokens}", run.get("step_over_roofline"), 1.15)]
    return checks


def narrow(r):
    """bf16 against f32 in the same parallel layout: products bound GPT-2 124M, so bf16 gains there what the instructions allow."""
    large = 3 if r.is_amx else 1.8 if r.is_zen4 else 1
    return [at_least(name, ratio(r.tps(section, f"kumi {layout} bf16"), r.tps(section, f"kumi {layout} f32")), target) for name, section, layout, target in (
        ("GPT-2 124M, 1,024 tokens", "gpt2", "2x1", large), ("8,192 tokens", "accumulation", "2x1", large), ("one sample", "long", "1x2", large),
        ("nanoGPT", "nanogpt", "2x1", 1), ("Llama 2x1", "llama", "2x1", 1), ("Llama 1x2", "llama", "1x2", 1), ("en-ja", "enja", "2x1", 1),
        ("ResNet-18 2x1", "resnet", "2x1", 1), ("ResNet-18 1x2", "resnet", "1x2", 1))]


def pytorch(r):
    checks = []
    for dtype, best, ddp, deep in ("bf16", 1.6 if r.is_intel and not r.is_amx else 1.25, 1.5, 1.3), ("f32", 1.12, 1.35, 1.15):
        mine = r.tps("gpt2", f"kumi 2x1 {dtype}")
        checks += [at_least(f"best {dtype}", ratio(mine, r.best("gpt2", "", dtype)), best),
                   at_least(f"DDP {dtype}", ratio(mine, r.best("gpt2", "2x1", dtype)), ddp),
                   at_least(f"best {dtype}, 8,192 tokens", ratio(r.tps("accumulation", f"kumi 2x1 {dtype}"), r.best("accumulation", "", dtype)), deep)]
    return checks


def zero(r):
    """Of stage 0; of FSDP2 with its defaults, the better of eager and compiled, in the same precision and with the same reductions."""
    checks, fsdp = [], 3 if r.is_amx else 1.55
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


def pipeline(r, dtype):
    """Tokens per second of kumi's fastest pipeline, and of data parallelism with its micro-batch."""
    found = [(run["tps"], "micro 4" in name) for name, run in r.of("parallel").items() if run and name.startswith("kumi pp ") and name.endswith(" " + dtype)]
    tps, is_wide = max(found, default=(None, False))
    return tps, r.tps("parallel", f"kumi dp{' micro 4' if is_wide else ''} {dtype}")


def parallel(r):
    """Of data parallelism with the same micro-batch; of PyTorch in the same layout, of pipelines the fastest of either side."""
    checks = []
    for dtype in "bf16", "f32":
        tps = lambda kind: r.tps("parallel", f"kumi {kind} {dtype}")
        is_amx = r.is_amx and dtype == "bf16"
        pp, dp = pipeline(r, dtype)
        peers = 2.5 if is_amx else 1.3
        checks += [at_least(f"tp 2 with sp {dtype}", ratio(tps("tp-sp"), tps("dp")), 0.8 if is_amx else 0.85),
                   at_least(f"pp 2 {dtype}", ratio(pp, dp), 0.88),
                   at_least(f"tp × PyTorch {dtype}", ratio(tps("tp"), r.tps("parallel", f"torch tp {dtype} eager")), peers),
                   at_least(f"tp with sp × PyTorch {dtype}", ratio(tps("tp-sp"), r.tps("parallel", f"torch tp-sp {dtype} eager")), peers),
                   at_least(f"pp × PyTorch {dtype}", ratio(pp, r.best("parallel", "pp", dtype)), peers)]
    return checks


def long(r):
    return [at_least(dtype, ratio(r.tps("long", f"kumi 1x2 {dtype}"), r.best("long", "", dtype)), target) for dtype, target in (("bf16", 1.3), ("f32", 1.15))]


def nanogpt(r):
    f32, bf16 = (r.tps("nanogpt", f"kumi 2x1 {d}") for d in ("f32", "bf16"))
    return [at_least("f32, eager", ratio(f32, r.best("nanogpt", "", "f32", "eager")), 1.6),
            at_least("f32, compiled", ratio(f32, r.best("nanogpt", "", "f32", "compiled")), 1.5),
            at_least("bf16", ratio(bf16, r.best("nanogpt", "", "bf16")), 2.2)]


def llama(r):
    return [at_least(f"best {dtype}", ratio(r.fastest("llama", dtype), r.best("llama", "", dtype)), target) for dtype, target in (("f32", 1.3), ("bf16", 2))]


def resnet(r):
    """At 3.34 GFLOP an image; `mfu` counts padding, as is usual."""
    checks = []
    for dtype, best in ("f32", 1.1), ("bf16", 1.2):
        mine = r.of("resnet").get(f"kumi 2x1 {dtype}") or {}
        checks += [percent_at_least(f"{dtype}, of the matrix peak", mine.get("mfu"), 0.88),
                   at_least(f"× PyTorch's best, {dtype}", ratio(r.fastest("resnet", dtype), r.best("resnet", "", dtype)), best)]
    return checks


def sample(r):
    """The roofline of a token: each weight is read once."""
    part, mine = r.of("sample"), r.tps("sample", "kumi bf16")
    least_s = part["roofline"]["bytes"] / part["roofline"]["read"] if part else None
    return [percent_at_least("of the roofline of reading the weights", mine and mine * least_s, 0.85),
            at_least("× PyTorch, compiled with a static cache", ratio(mine, r.best("sample", "", "bf16", "compiled")), 1.5),
            at_least("× llama.cpp", ratio(mine, r.tps("sample", "llama.cpp")), 1)]


def enja(r):
    return [at_least(dtype, ratio(r.tps("enja", f"kumi 2x1 {dtype}"), r.best("enja", "", dtype)), 1.5) for dtype in ("bf16", "f32")]


def ops(r):
    """Ops above 1 % of the step of their workload. `details` lists those below the mark."""
    found = [op["of_limit"] for rows in r.of("ops").values() for op in rows.values()]
    kind = Disturbed if any(isinstance(of_limit, Disturbed) for of_limit in found) else int
    reached = kind(sum(of_limit >= OP_MARK for of_limit in found)) if found else None
    return [(f"at {100 * OP_MARK:.0f} % or more", reached, len(found), judged(reached, lambda n: n == len(found)), f"{reached or 0:.0f} of {len(found)}")]


def first_step(r):
    start = r.of("start")
    return [at_most("`kumi train` to the first step, s", (start.get("first_step_s") or {}).get("median"), 0.7),
            at_most("compile and plan, s", (start.get("plan_s") or {}).get("median"), 0.3)]


def collectives(r):
    mpi = lambda what, size: min((t for t in (r.comm(f"{m} 2", what, size) for m in ("openmpi", "mpich")) if t), default=None)
    checks = []
    for size, target in (64 * MIB, 0.85), (256 * MIB, 0.9):
        mine = r.comm("kumi 2", "all_reduce", size, "owned")
        checks += [percent_at_least(f"all-reduce {SIZES[size]}, of its roofline", r.comm("kumi 2", "all_reduce", size, "owned", key="ratio"), target),
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
        peers = [v["pss_bytes"] for k, v in r.of("gpt2").items() if v and v.get("pss_bytes") and k.startswith("torch 2x1") and f" {dtype} eager" in k]
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
            at_most("longest step meanwhile / allowed", ratio(steps and steps["max"], allowed), 1)]


ROWS = [("GPT-2 124M: share of the matrix peak, step time over the roofline T", gpt2_speed),
        ("GPT-2 124M against PyTorch", pytorch),
        ("bf16 against f32, same parallel layout", narrow),
        ("GPT-2 124M, stages of ZeRO against stage 0; against FSDP2", zero),
        ("GPT-2 124M, 16 sequences of 256, one model over 2 ranks, against data parallelism and PyTorch", parallel),
        ("One sample of 1,024 tokens, 1 rank × 2 threads, against PyTorch's best", long),
        ("nanoGPT's CPU setting against PyTorch", nanogpt),
        ("Llama, 1.6 M parameters, 1,024 tokens a step, against PyTorch", llama),
        ("English-Japanese Transformer against PyTorch's best, target tokens/s", enja),
        ("ResNet-18 for 32 x 32, batch 128, against PyTorch", resnet),
        ("`kumi sample` of GPT-2 124M, one sequence, bf16", sample),
        ("Ops above 1 % of a workload's step, with a share of their roofline", ops),
        ("Start of the first step", first_step),
        ("Collectives of 2 ranks", collectives),
        ("4 and 8 ranks on 2 cores", crowded),
        ("Exposed communication, GPT-2 124M on 2 ranks", exposed),
        ("Bookkeeping of a collective", bookkeeping),
        ("Memory, GPT-2 124M on 2 ranks", memory),
        ("Loader", loader),
        ("Checkpoints", checkpoints)]


def lines_of(r):
    for name, row in ROWS:
        checks = row(r)
        targets = [c for c in checks if c[2] is not None]
        met, missed, none, disturbed = ([c for c in targets if kind(c)] for kind in (
            lambda c: c[3], lambda c: c[1] is not None and c[3] is False, lambda c: c[1] is None, lambda c: c[1] is not None and c[3] is None))
        where = [word for word, left in (("measured", none), ("undisturbed", disturbed)) if left]
        verdict = ("**missed**" if missed else "disturbed" if disturbed and not met else "not measured" if not met
                   else f"met where {' and '.join(where)}" if where else "met")
        yield name, checks, verdict


def cell_of(check):
    label, value, target, is_met, text = check
    says = "–" if value is None else f"{text}, disturbed" if isinstance(value, Disturbed) else text
    return f"{label} {says}" + (f" ({target_of(check)})" if target is not None else "")


def target_of(check):
    label, value, target, is_met, text = check
    if isinstance(target, float) and (text or "").endswith("%"):
        return f"{100 * target:.0f} %"
    return f"{target:.2f}".rstrip("0").rstrip(".")


def title(store):
    return f"{store['cpu'].replace('(R)', '').replace('(TM)', '')}, {store['isa']}"


def when(r, order):
    """One line: which sections were measured when, with which kumi."""
    groups = {}
    for name in order:
        s = r.sections.get(name)
        key = f"{s['date']}, kumi {s['version']} ({s.get('commit', 'no commit')})" if s else "not measured"
        groups.setdefault(key, []).append(name)
    missing = groups.pop("not measured", [])
    dated = [f"{', '.join(names)} on {key}" for key, names in groups.items()]
    return "Measured: " + "; ".join(dated) + (f". Not measured: {', '.join(missing)}." if missing else ".")


def markdown(kind, store, order):
    r = Results(store)
    discarded = sum(s.get("discarded", 0) for s in r.sections.values())
    cpus = sorted({", ".join(map(str, s["cpus"])) for s in r.sections.values()})
    out = [f"{title(store)}, CPUs {' or '.join(cpus)}; {', '.join(f'{k} {v}' for k, v in versions(r).items())}. " + when(r, order),
           f"Turns discarded because the machine was disturbed: {discarded}."]
    if any(s["quick"] for s in r.sections.values()):
        out.append("**A trial of the scripts with few steps: these figures mean nothing.**")
    for name, block in BLOCKS.items():
        lines = block(r, title(store))
        if lines:
            out += ["", f"<!-- measured:{name}-{kind} -->", *lines, "<!-- /measured -->"]
    out += ["", "| | measured (target) | |", "|---|---|---|"]
    for name, checks, verdict in lines_of(r):
        out.append(f"| {name} | {'; '.join(map(cell_of, checks))} | {verdict} |")
    lacks = [f"{name}: {note}" for name in order for note in r.sections.get(name, {"not_measured": []})["not_measured"]]
    if lacks:
        out += ["", "Not measured, or not as said:", ""] + [f"* {note}" for note in lacks]
    return "\n".join(out) + "\n" + details(r)


def comparison(r, where):
    """Tokens per second beside PyTorch."""
    dates = sorted({r.sections[s]["date"] for s in ("gpt2", "nanogpt") if s in r.sections}) or ["not measured yet"]
    out = [f"Two cores of this machine: {where}; {' and '.join(dates)}, PyTorch {versions(r).get('PyTorch', 'none')}. PyTorch's figures are the better of "
           "eager and compiled. Other kinds of CPU differ.", "",
           "| tokens a second | kumi, 2 ranks × 1 thread | PyTorch DDP over Gloo, 2 × 1 | PyTorch, 1 process × 2 threads |",
           "|---|--:|--:|--:|"]
    for section, name in ("gpt2", "GPT-2 124M, 1,024 tokens a step"), ("nanogpt", "nanoGPT's CPU setting"):
        for dtype in "f32", "bf16":
            cells = [r.tps(section, f"kumi 2x1 {dtype}"), r.best(section, "2x1", dtype), r.best(section, "1x2", dtype)]
            out.append(f"| {name}, {dtype} | " + " | ".join(f"{c:,.0f}" if c else "–" for c in cells) + " |")
    return out


LAYOUTS = {"dp": "data parallel", "tp": "`tp` 2", "tp-sp": "`tp` 2 with `sp`", "pp 1f1b": "`pp` 2, 1f1b", "pp zb-h2": "`pp` 2, zb-h2", "pp zb-v": "`pp` 2, zb-v"}


def layouts(r, where):
    """Tokens per second and memory of one model over two ranks, beside data parallelism and PyTorch in the same layout."""
    runs = r.of("parallel")
    if not runs:
        return None
    peer = lambda kind, dtype: max((run["tps"] for name, run in runs.items() if run and name.startswith(f"torch {kind} ") and f" {dtype} " in name and "micro" not in name),
                                   default=None)
    out = [f"GPT-2 124M on two ranks of one thread, each with memory of its own; 16 sequences of 256 tokens a step, micro-batches of 2: {where}; "
           f"{r.sections['parallel']['date']}, PyTorch {versions(r).get('PyTorch', 'none')} over Gloo in the same layout, of its pipelines the fastest. GB: memory of "
           "both ranks. Other kinds of CPU differ.", "",
           "| | " + " | ".join(f"{dtype}, tokens/s | × data parallel | × PyTorch | GB" for dtype in ("bf16", "f32")) + " |", "|---" + "|--:" * 8 + "|"]
    for kind, name in LAYOUTS.items():
        cells = []
        for dtype in "bf16", "f32":
            run, dp = runs.get(f"kumi {kind} {dtype}") or {}, r.tps("parallel", f"kumi dp {dtype}")
            tps, bytes_of = run.get("tps"), run.get("pss_bytes")
            beside = ratio(tps, dp), ratio(tps, peer(kind.split()[0], dtype))
            cells += [tps and f"{tps:,.0f}", *(x and f"{x:.2f}" for x in beside), bytes_of and f"{bytes_of / 1e9:.1f}"]
        out.append(f"| {name} | " + " | ".join(c or "–" for c in cells) + " |")
    return out


BLOCKS = {"comparison": comparison, "parallel": layouts} # marked parts of a table, which a page repeats for one kind of CPU: lines, None where nothing was measured


def versions(r):
    """Of every peer those that sections were measured with."""
    merged = {}
    for s in r.sections.values():
        for k, v in s["versions"].items():
            if v and v not in merged.setdefault(k, []):
                merged[k].append(v)
    return {k: " and ".join(v) for k, v in merged.items()}


def details(r):
    """What the ratios are made of: limits, ops below their mark, and tokens per second of all programs."""
    out = []
    if r.of("limits"):
        out += ["", "| limit | | median | min | max |", "|---|--:|--:|--:|--:|"]
        for name, row in r.of("limits").items():
            scale, unit = (1, "ns") if row["unit"] == "ns" else (1e-9, "G" + row["unit"])
            out.append(f"| {name} | {row['value'] * scale:,.1f} {unit} | " + " | ".join(f"{row[k] * scale:,.1f}" for k in ("median", "min", "max")) + " |")
    low = sorted((op["of_limit"], op["share"], step, name) for step, rows in r.of("ops").items() for name, op in rows.items() if op["of_limit"] < OP_MARK)
    if low:
        out += ["", f"| op below {100 * OP_MARK:.0f} % of its roofline | step | of the step | of the roofline |", "|---|---|--:|--:|"]
        out += [f"| `{name}` | {step} | {100 * share:.1f} % | {100 * of_limit:.0f} % |" for of_limit, share, step, name in low]
    names = {"gpt2": "GPT-2 124M, 1,024 tokens", "accumulation": "GPT-2 124M, 8,192 tokens", "zero": "ZeRO, 1,024 tokens",
             "parallel": "one model over 2 ranks, 4,096 tokens", "long": "one sample of 1,024 tokens",
             "nanogpt": "nanoGPT's CPU setting", "llama": "Llama, 1.6 M parameters", "enja": "English-Japanese Transformer", "resnet": "ResNet-18, 128 images",
             "sample": "sampling GPT-2 124M, a token a step"}
    rows = [(name, who, run) for key, name in names.items() for who, run in r.of(key).items() if run and "tps" in run]
    if rows:
        out += ["", "| | | tokens/s, images/s | step ms | min | max | steps | turns, discarded |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for name, who, run in rows:
        s = run["step_ms"]
        who = who.replace("torch", "PyTorch")
        out.append(f"| {name} | {who} | {run['tps']:,.0f} | {s['median']:.1f} | {s['min']:.1f} | {s['max']:.1f} | {s['n']} | {run['turns']}, {run['discarded']} |")
    who = [w for w in ("kumi 2", "openmpi 2", "mpich 2", "gloo 2") if r.of("comm").get(w)]
    if who:
        out += ["", "| 2 ranks, median µs | | " + " | ".join(w[:-2] for w in who) + " |", "|---|---|" + "--:|" * len(who)]
    for what in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "send_recv") if who else ():
        for size, name in SIZES.items():
            cells = [r.kumi(what, size) if w == "kumi 2" else r.comm(w, what, size) for w in who]
            out.append(f"| {what} | {name} | " + " | ".join(f"{c:,.2f}" if c else "–" for c in cells) + " |")
    return "\n".join(out) + "\n" if out else ""
