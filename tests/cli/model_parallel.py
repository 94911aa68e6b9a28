# SPDX-License-Identifier: Apache-2.0
"""Trainings of every model-parallel layout, whose digest must be that of one rank (of tp ranks with the same sp): model_parallel.py KUMI FOLDER [--grid [MODEL]]

    model      gpt2 (dropout, tied table), gpt2 with an output layer of its own, llama (grouped queries; all over one key head), an encoder-decoder over two batch shapes
    tp         1 2 4, 2 and 4 with sp              pp         1 2 4 under every schedule, and a file with B beside I and W
    dp         1 2                                 zero       0 to 3
    recompute  none, selective, full               sums       added up over micro-batches, or each reduced
    hosts      one, two of equal size, one rank and the others
    offload    none, activations in memory and the optimizer in a file, everything in memory

and with tp_exact 4 small ones of these models in f32 and bf16, whose digest must be that of one rank for tp 1 2 4, with and without sp; with
tp_exact 6 a gpt2 of six heads for tp 1 3 6, whose vocabulary of 256 gets 128 rows of padding.
The bytes that the ranks moved, near and between hosts, are those planned by the run and by kumi plan. And chains: runs of three steps, each in
another of these layouts. KUMI_TEST_ALL=1 runs N_ALL rows (N_ALL / 2 with tp_exact) and N_CHAINS chains, else a sample by KUMI_TEST_SEED. JOBS: runs at a time.

--grid runs every layout of GRID, of one model or of all, and prints tables of digests instead. FOLDER is an empty directory.
"""
import concurrent.futures
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys

KUMI, FOLDER, *OPTIONS = sys.argv[1:]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "auto", "file")
GPT2 = {"model_type": "gpt2", "n_layer": 8, "n_head": 4, "n_embd": 32, "n_positions": 32, "vocab_size": 256, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1}
MODELS = {
    "tied": GPT2 | {"tie_word_embeddings": True},
    "untied": GPT2 | {"tie_word_embeddings": False},
    "llama": {"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32,
              "intermediate_size": 64, "max_position_embeddings": 32, "vocab_size": 256},
    "one key head": {"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32,
                     "intermediate_size": 64, "max_position_embeddings": 32, "vocab_size": 256, "attention_dropout": 0.1, "attention_bias": True},
    "pairs": {"model_type": "transformer", "d_model": 32, "encoder_layers": 4, "decoder_layers": 4, "num_heads": 4, "ffn_dim": 64, "max_positions": 32,
              "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1, "norm_first": True},
}
SHORT = {"n_layer": 4, "n_embd": 36} # heads of nine: odd runs of pairs
SIX = {"n_head": 6, "n_positions": 24} # slices; and tokens that they divide
EXACT = {f"{name} {compute}": MODELS[name] | more for compute in ("f32", "bf16") for name, more in
         (("tied", SHORT), ("untied", SHORT), ("llama", {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 80}),
          ("pairs", {"encoder_layers": 2, "decoder_layers": 2}))}
EXACT |= {f"six {compute}": MODELS["tied"] | SHORT | SIX for compute in ("f32", "bf16")}
OFFLOAD = {
    "none": {},
    "some": {"optimizer": "file", "activations": "host"},
    "all": {"optimizer": "host", "params": "host", "activations": "host"}, # params: of stage 3 alone
}
N_ROWS, N_SHARED, N_EXACT, N_ALL, N_CHAINS, STEPS, DEADLINE_S, SHARDS, MICRO = 6, 2, 4, 600, 60, 3, 120, 2, 4


MODES = (("tp", 1), ("tp", 2), ("tp", 4), ("sp", 2), ("sp", 4))
EXACT_MODES = [("exact", tp) for tp in (1, 2, 3, 4, 6)] + [("exact sp", tp) for tp in (2, 3, 4, 6)]


def slices(model):
    """parallel.tp_exact, and each tp that has whole nodes of the tree of slices."""
    return (6, (1, 3, 6)) if model.startswith("six") else (4, (1, 2, 4))


GRID = {model: MODES[:1] for model in ("tied", "untied", "llama", "pairs")}
GRID |= {model: [(mode, tp) for mode, tp in EXACT_MODES if tp in slices(model)[1]] for model in EXACT if model.endswith("f32")}
COLUMNS = [(dp, zero, recompute) for dp, zero in ((1, 0), (2, 0), (2, 1), (2, 3)) for recompute in ("none", "full")]


class Row:
    FIELDS = ("model", "tp", "mode", "pp", "schedule", "dp", "zero", "recompute", "sums", "hosts", "offload")

    def __init__(self, *values):
        self.__dict__.update(zip(self.FIELDS, values))
        self.values = values
        self.n = self.tp * self.pp * self.dp
        self.is_exact, self.is_pairs = self.model in EXACT, self.model.startswith("pairs")
        self.key = (self.model, 1, "exact", self.sums) if self.is_exact else (self.model, self.tp, self.mode, self.sums)

    def __str__(self):
        return " ".join(map(str, self.values))

    def is_legal(self):
        return ((self.pp > 1 or self.schedule == "1f1b") # one stage has no schedule
                and (self.dp > 1 or self.zero == 0) and 8 >= self.n > {"one": 0, "two": 1, "uneven": 2}[self.hosts]
                and (self.offload != "all" or self.zero == 3)
                and (not self.is_exact or self.tp in slices(self.model)[1])
                and self.pp <= (2 if self.is_exact else 4)) # of four layers

    def shares_heads(self):
        return self.tp > {"llama": 2, "one key head": 1}.get(self.model, 4)

    def ranks(self):
        if self.hosts == "one":
            return ["-n", str(self.n)]
        first = self.n // 2 if self.hosts == "two" else 1
        return ["-H", f"a:{first},b:{self.n - first}"]


def rows(models, modes):
    every = itertools.product(models, modes, (1, 2, 4), SCHEDULES, (1, 2), range(4), ("none", "selective", "full"), ("step", "micro"),
                              ("one", "two", "uneven"), OFFLOAD)
    return [r for r in (Row(model, tp, mode, *more) for model, (mode, tp), *more in every) if r.is_legal()]


def one_process(key):
    model, tp, mode, sums = key
    return Row(model, tp, mode, 1, "1f1b", 1, 0, "none", sums, "one", "none")


def settings(row):
    # an offloaded optimizer needs blocks; without a pipeline or tp the ranks of a host share one copy unless told not to
    parallel = {"tp": row.tp, "sp": row.mode.endswith("sp"), "zero": row.zero, "persist_below": 100, "host_state": "private", "grad_sync": row.sums}
    if row.pp > 1:
        parallel |= {"pp": row.pp, "pp_schedule": f"{FOLDER}/{row.pp}-{row.dp}.csv" if row.schedule == "file" else row.schedule}
    if row.is_exact:
        parallel["tp_exact"] = slices(row.model)[0]
    config = {
        "model": (EXACT | MODELS)[row.model],
        "data": {"train": f"{FOLDER}/text", "val_fraction": 0.1},
        "train": {"steps": STEPS, "virtual_shards": SHARDS, "micro_batch": 1, "global_batch": SHARDS * MICRO, "eval_tokens": 64, "eval_every": 2,
                  "threads": 1, "verify_every": 2},
        "precision": {"compute": row.model.split()[1] if row.is_exact else "f32"},
        "memory": {"recompute": row.recompute},
        "parallel": parallel,
        "checkpoint": {"every": 1},
    }
    if row.offload != "none":
        config["memory"]["offload"] = OFFLOAD[row.offload] | {"path": FOLDER, "buffer_size": 8192}
    if row.is_pairs:
        config["data"] = {"train": f"{FOLDER}/train.en", "train_target": f"{FOLDER}/train.ja", "val": f"{FOLDER}/val.en", "val_target": f"{FOLDER}/val.ja",
                          "tokenizer": "word", "target_tokenizer": "word", "shapes": 2, "last_batch": "drop", "max_source_len": 24,
                          "max_target_len": 31}
        del config["train"]["eval_tokens"]
    return config


def kumi(*argv):
    env = os.environ | {"KUMI_CACHE": f"{FOLDER}/cache"}
    return subprocess.run(["timeout", "-k", "5", str(DEADLINE_S), KUMI, *argv], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def run(name, row, more):
    """The digest that a training prints; None, and why."""
    path = f"{FOLDER}/{name}.json"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(settings(row), f)
    pretend = ["--rsh", "none"] if row.hosts != "one" else []
    p = kumi("train", path, *row.ranks(), *pretend, "--out", f"{FOLDER}/{name}", *more)
    digests = [x for x in p.stdout.split("\n") if x.startswith("digest: ")]
    return (digests[0], "") if p.returncode == 0 and len(digests) == 1 else (None, f"exit {p.returncode}: {p.stderr[-600:]}")


def bytes_differ(name, row):
    """What the run moved is what it planned, and what kumi plan prints. Collectives of at most 88 bytes, as tp has in short batches, move none."""
    with open(f"{FOLDER}/{name}/summary.json", encoding="utf-8") as f:
        step = json.load(f).get("exchanged_a_step")
    if step is None or row.is_pairs: # whose steps have two shapes
        return None
    p = kumi("plan", f"{FOLDER}/{name}.json", *row.ranks(), "--json")
    plan = json.loads(p.stdout)["sharding"] if p.returncode == 0 else {}
    pairs = [("planned_bytes", "moved_bytes")] + ([("planned_far_bytes", "far_bytes")] if row.hosts != "one" else [])
    bad = [f"{a} {step[a]}, {b} {step[b]}, kumi plan {plan.get(a)}" for a, b in pairs if not step[b] == step[a] == round(plan.get(a, -1))]
    return "; ".join(bad) + p.stderr[-300:] if bad else None


def write_data():
    """Any text, and pairs of sentences."""
    with open("docs/internals/numerics.md", "rb") as source, open(f"{FOLDER}/text", "wb") as text:
        text.write(source.read(20000))
    rng = random.Random(5)
    for split, n in (("train", 120), ("val", 20)):
        with open(f"{FOLDER}/{split}.en", "w", encoding="utf-8") as en, open(f"{FOLDER}/{split}.ja", "w", encoding="utf-8") as ja:
            for _ in range(n):
                words = [rng.randrange(30) for _ in range(rng.randint(1, 11))]
                en.write(" ".join(f"e{w}" for w in words) + "\n")
                ja.write(" ".join(f"日{w * 7 % 31}" for w in words[::-1] for _ in range(1 + w % 2)) + "\n")


class DualPipeV:
    """A coordinate's row of DualPipeV (DeepSeek 2025), two stages placed as a V, as PyTorch prints it: B of most micro-batches, I and W of the last ones."""

    def __init__(self, p, m, rank):
        self.count, self.late, self.cells, whole = {}, [], [], True
        down, up, left = rank, 2 * p - 1 - rank, p - 1 - rank
        self.add(*2 * left * [(down, "F")])
        self.add(*(rank + 1) * [(down, "F"), (up, "F")])
        for _ in range(left):
            self.add((up, "I"))
            self.weights()
            self.add((up, "F"))
        for i in range(m - 2 * p + rank + 1):
            (self.add if i == 0 and left == 0 else self.overlap)((down, "F"), (up, "B"))
            self.overlap((up, "F"), (down, "B"))
        for _ in range(left):
            self.add((up, "B"))
            self.overlap((up, "F"), (down, "B"))
        for i in range(rank + 1):
            for stage, odd in (up, 1), (down, 0):
                whole = whole and not (i == (rank + 1) // 2 and rank % 2 == odd)
                self.add((stage, "B" if whole else "I"))
        for _ in range(left):
            self.weights()
            self.add((down, "B" if whole else "I"))
        while self.late:
            self.weights()

    def name(self, stage, kind):
        key = (stage, kind == "F")
        micro = self.count[key] = self.count.get(key, -1) + 1
        self.late += [(stage, micro)] if kind == "I" else []
        return f"{stage}{kind}{micro}"

    def add(self, *blocks):
        self.cells += [self.name(*x) for x in blocks]

    def overlap(self, *blocks):
        self.cells.append(f"({';'.join(self.name(*x) for x in blocks)})OVERLAP_F_B")

    def weights(self):
        if self.late:
            self.cells.append("{}W{}".format(*self.late.pop(0)))


def write_schedules():
    """Files for every number of coordinates and micro-batches: DualPipeV, or 1f1b with half of its B as I and W where these are too few."""
    for pp, dp in itertools.product((2, 4), (1, 2)):
        m = SHARDS * MICRO // dp
        row = Row("tied", 1, "tp", pp, "1f1b", dp, 0, "none", "step", "one", "none")
        text = "".join(",".join(DualPipeV(pp, m, rank).cells) + "\n" for rank in range(pp)) if m >= 2 * pp else None
        if text is None:
            with open(f"{FOLDER}/plan.json", "w", encoding="utf-8") as f:
                json.dump(settings(row), f)
            p = kumi("plan", f"{FOLDER}/plan.json", *row.ranks(), "--schedule", "--csv")
            assert p.returncode == 0, p.stderr
            text = re.sub(r"(\d+)B(\d*[13579])\b", r"\1I\2,\1W\2", p.stdout)
        assert "B" in text and "I" in text, text
        with open(f"{FOLDER}/{pp}-{dp}.csv", "w", encoding="utf-8") as f:
            f.write(text)


class Matrix:
    def __init__(self):
        self.one, self.failed = {}, []

    def reference(self, row):
        if row.key not in self.one:
            digest, why = run("-".join(map(str, ("one", *row.key))).replace(" ", "-"), one_process(row.key), [])
            self.one[row.key] = digest or f"none: {why}"
        return self.one[row.key]

    def fail(self, what):
        self.failed.append(what)
        print(what, flush=True)

    def expect(self, what, row, digest, why):
        if digest != self.reference(row):
            self.fail(f"{what}: {digest or why}, not {self.reference(row)}")

    def row(self, i, row):
        digest, why = run(f"row-{i}", row, [])
        self.expect(str(row), row, digest, why)
        differ = bytes_differ(f"row-{i}", row) if digest else None
        if differ:
            self.fail(f"{row}: {differ}")
        shutil.rmtree(f"{FOLDER}/row-{i}", ignore_errors=True)

    def chain(self, i, links):
        for step, row in enumerate(links):
            digest, why = run(f"chain-{i}", row, ["--resume=auto", "--until", str(step + 1)])
            if digest is None:
                break
        self.expect(" -> ".join(map(str, links)), links[-1], digest, why)
        shutil.rmtree(f"{FOLDER}/chain-{i}", ignore_errors=True)


class Grid:
    """Tables of the digests of one model under every layout of GRID."""

    def __init__(self, model, pool):
        self.model, self.pool, self.digests, self.refused, self.failed, self.count = model, pool, set(), 0, 0, 0

    def cell(self, row):
        name = "-".join(map(str, ("grid", *row.values))).replace(" ", "-")
        digest, why = run(name, row, [])
        shutil.rmtree(f"{FOLDER}/{name}", ignore_errors=True)
        return digest, why

    def text(self, future):
        if future is None:
            return "more than 8 ranks"
        self.count += 1
        digest, why = future.result()
        if digest:
            self.digests.add(digest)
            return digest.split(":")[-1].strip()[:8]
        is_refusal = why.startswith("exit 2: ")
        self.refused += is_refusal
        self.failed += not is_refusal
        return ("refused: " if is_refusal else "failed: ") + " ".join(why.split("kumi: error: ")[-1].split()).replace("|", "\\|")

    def table(self, mode, tp):
        heads = ["pp", "schedule"] + [f"dp {dp}" + (f", ZeRO {zero}" if zero else "") + (", recompute" if recompute == "full" else "")
                                      for dp, zero, recompute in COLUMNS]
        lines = {}
        for pp, schedule in itertools.product((1, 2, 4), SCHEDULES):
            of = [Row(self.model, tp, mode, pp, schedule, dp, zero, recompute, "step", "one", "none") for dp, zero, recompute in COLUMNS]
            if schedule != "file" and of[0].is_legal():
                lines[pp, schedule] = [self.pool.submit(self.cell, row) if row.is_legal() else None for row in of]
        sp = " sp" if mode.endswith("sp") else ""
        print(f"\n{self.model}, tp {tp}{sp}{f', tp_exact {slices(self.model)[0]}' if self.model in EXACT else ''}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
        for (pp, schedule), futures in lines.items():
            print("| " + " | ".join([str(pp), schedule if pp > 1 else "none", *map(self.text, futures)]) + " |", flush=True)

    def is_one_digest(self):
        for mode, tp in GRID[self.model]:
            self.table(mode, tp)
        more = "".join(f", {n} {what}" for n, what in ((self.refused, "refused"), (self.failed, "failed")) if n)
        print(f"\n{self.model}: {self.count} layouts, {len(self.digests)} digest{'' if len(self.digests) == 1 else 's'}{more}", flush=True)
        return len(self.digests) == 1 and self.failed == 0


def print_grid(models):
    if not set(models) <= set(GRID):
        sys.exit(f"--grid: the models are {', '.join(GRID)}")
    write_data()
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        return 0 if all([Grid(model, pool).is_one_digest() for model in models or GRID]) else 1


def main():
    if OPTIONS[:1] == ["--grid"]:
        return print_grid(OPTIONS[1:])
    is_all, seed = os.environ.get("KUMI_TEST_ALL") == "1", int(os.environ.get("KUMI_TEST_SEED", "1"))
    rng, every, exact, m = random.Random(seed), rows(MODELS, MODES), rows(EXACT, EXACT_MODES), Matrix()
    write_data()
    write_schedules()
    chosen = rng.sample(every, N_ALL if is_all else N_ROWS) + rng.sample(exact, N_ALL // 2 if is_all else N_EXACT)
    chosen += rng.sample([r for r in every if r.shares_heads()], N_ALL // 6 if is_all else N_SHARED) # fewer key heads than tp
    chains = []
    for i in range(N_CHAINS if is_all else 3): # of one numerics class
        some = exact if i % 3 == 2 else every
        of = rng.choice(some).key
        chains.append(rng.sample([r for r in some if r.key == of], 3))
    for row in chosen + [c[-1] for c in chains]:
        m.reference(row)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        done = [pool.submit(m.row, i, r) for i, r in enumerate(chosen)] + [pool.submit(m.chain, i, c) for i, c in enumerate(chains)]
        for future in concurrent.futures.as_completed(done):
            future.result()
    print(f"{len(chosen)} of {len(every) + len(exact)} layouts and {len(chains)} chains, seed {seed}: {len(m.failed)} differ")
    return 1 if m.failed else 0


sys.exit(main())
