# SPDX-License-Identifier: Apache-2.0
"""Trainings of every model-parallel layout, whose digest must be that of one rank (of tp ranks): model_parallel.py KUMI FOLDER

    model      gpt2 (dropout, tied table), gpt2 with an output layer of its own, llama (grouped queries)
    tp         1 2                                 pp         1 2 4 under every schedule, and one from a file
    dp         1 2                                 zero       0 1 2, without a pipeline also 3
    recompute  none, selective, full

and with tp_exact 4, whose digest must be that of one rank for every tp:

    compute    f32 bf16                            tp         1 2 4, with and without sp
    dp         1 2                                 zero       0 1 2
    recompute  none, selective, full               pp         1, and 2 with zero 0

and chains: runs of three steps, each in another of these layouts (with tp_exact of another tp, too). KUMI_TEST_ALL=1 runs all rows and N_CHAINS chains, else a sample by
KUMI_TEST_SEED. JOBS: runs at a time.
"""
import concurrent.futures
import itertools
import json
import os
import random
import shutil
import subprocess
import sys

KUMI, FOLDER = sys.argv[1:]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "auto", "file")
GPT2 = {"model_type": "gpt2", "n_layer": 8, "n_head": 4, "n_embd": 32, "n_positions": 16, "vocab_size": 256, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1}
MODELS = {
    "tied": GPT2 | {"tie_word_embeddings": True},
    "untied": GPT2 | {"tie_word_embeddings": False},
    "llama": {"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32,
              "intermediate_size": 64, "max_position_embeddings": 16, "vocab_size": 256},
}
SHORT = {"n_layer": 2, "n_embd": 36} # heads of nine: odd runs of pairs
EXACT = {f"{name} {compute}": MODELS[name] | more for compute in ("f32", "bf16") for name, more in
         (("tied", SHORT), ("untied", SHORT), ("llama", {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 80}))}
N_ROWS, N_EXACT, N_CHAINS, STEPS, DEADLINE_S, SHARDS, MICRO = 12, 6, 40, 3, 120, 2, 4


def rows():
    """(model, tp, pp, schedule, dp, zero, recompute) of all that differ."""
    return [r for r in itertools.product(MODELS, (1, 2), (1, 2, 4), SCHEDULES, (1, 2), range(4), ("none", "selective", "full"))
            if (r[2] > 1 or r[3] == "1f1b") # one stage has no schedule
            and (r[4] > 1 or r[5] == 0) and (r[2] == 1 or r[5] < 3)]


def exact_rows():
    return [r for r in itertools.product(EXACT, (1, 2, 4), (1, 2), ("1f1b", "sp"), (1, 2), range(3), ("none", "selective", "full"))
            if (r[4] > 1 or r[5] == 0) and (r[2] == 1 or r[5] == 0) and r[1] * r[2] * r[4] <= 8 and (r[1] > 1 or r[3] == "1f1b")]


def key_of(row):
    """Rows of one key have one digest."""
    return row[:1] if row[0] in EXACT else row[:2]


def settings(row):
    model, tp, pp, schedule, dp, zero, recompute = row
    parallel = {"tp": tp, "zero": zero, "persist_below": 100, "host_state": "private"}
    if pp > 1:
        parallel |= {"pp": pp, "pp_schedule": {"file": f"{FOLDER}/{pp}-{dp}.csv", "sp": "1f1b"}.get(schedule, schedule)}
    if model in EXACT:
        parallel |= {"tp_exact": 4, "sp": schedule == "sp"}
    return {
        "model": (EXACT | MODELS)[model],
        "data": {"train": f"{FOLDER}/text", "val_fraction": 0.1},
        "train": {"steps": STEPS, "virtual_shards": SHARDS, "micro_batch": 1, "global_batch": SHARDS * MICRO, "eval_tokens": 32, "eval_every": 2,
                  "threads": 1, "verify_every": 2},
        "precision": {"compute": model.split()[1] if model in EXACT else "f32"},
        "memory": {"recompute": recompute},
        "parallel": parallel,
        "checkpoint": {"every": 1},
    }


def kumi(*argv):
    env = os.environ | {"KUMI_CACHE": f"{FOLDER}/cache"}
    return subprocess.run(["timeout", "-k", "5", str(DEADLINE_S), KUMI, *argv], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def run(name, row, more):
    """The digest that a training prints; None, and why."""
    path = f"{FOLDER}/{name}.json"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(settings(row), f)
    p = kumi("train", path, "-n", str(row[1] * row[2] * row[4]), "--out", f"{FOLDER}/{name}", *more)
    digests = [x for x in p.stdout.split("\n") if x.startswith("digest: ")]
    return (digests[0], "") if p.returncode == 0 and len(digests) == 1 else (None, f"exit {p.returncode}: {p.stderr[-600:]}")


def write_schedules():
    """Files for every number of coordinates and micro-batches: those of 1f1b."""
    for pp, dp in itertools.product((2, 4), (1, 2)):
        row = ("tied", 1, pp, "1f1b", dp, 0, "none")
        with open(f"{FOLDER}/plan.json", "w", encoding="utf-8") as f:
            json.dump(settings(row), f)
        p = kumi("plan", f"{FOLDER}/plan.json", "-n", str(pp * dp), "--schedule", "--csv")
        assert p.returncode == 0, p.stderr
        with open(f"{FOLDER}/{pp}-{dp}.csv", "w", encoding="utf-8") as f:
            f.write(p.stdout)


class Matrix:
    def __init__(self):
        self.one, self.failed = {}, []

    def reference(self, row):
        key = key_of(row)
        if key not in self.one:
            digest, why = run("-".join(map(str, ("one", *key))).replace(" ", "-"), (row[0], 1 if row[0] in EXACT else row[1], 1, "1f1b", 1, 0, "none"), [])
            self.one[key] = digest or f"none: {why}"
        return self.one[key]

    def expect(self, what, row, digest, why):
        if digest != self.reference(row):
            self.failed.append(what)
            print(f"{what}: {digest or why}, not {self.reference(row)}", flush=True)

    def row(self, i, row):
        digest, why = run(f"row-{i}", row, [])
        self.expect(" ".join(map(str, row)), row, digest, why)
        shutil.rmtree(f"{FOLDER}/row-{i}", ignore_errors=True)

    def chain(self, i, links):
        for step, row in enumerate(links):
            digest, why = run(f"chain-{i}", row, ["--resume=auto", "--until", str(step + 1)])
            if digest is None:
                break
        self.expect(" -> ".join(" ".join(map(str, r)) for r in links), links[-1], digest, why)
        shutil.rmtree(f"{FOLDER}/chain-{i}", ignore_errors=True)


def main():
    is_all, seed = os.environ.get("KUMI_TEST_ALL") == "1", int(os.environ.get("KUMI_TEST_SEED", "1"))
    rng, every, exact, m = random.Random(seed), rows(), exact_rows(), Matrix()
    with open("docs/internals/numerics.md", "rb") as source, open(f"{FOLDER}/text", "wb") as text: # any text
        text.write(source.read(20000))
    write_schedules()
    chosen = every + exact if is_all else rng.sample(every, N_ROWS) + rng.sample(exact, N_EXACT)
    chains = []
    for i in range(N_CHAINS if is_all else 3): # of one model and one tp, or of one model and tp_exact
        of = key_of(rng.choice(exact if i % 3 == 2 else every))
        chains.append(rng.sample([r for r in every + exact if key_of(r) == of], 3))
    for row in chosen + [c[-1] for c in chains]:
        m.reference(row)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        done = [pool.submit(m.row, i, r) for i, r in enumerate(chosen)] + [pool.submit(m.chain, i, c) for i, c in enumerate(chains)]
        for future in concurrent.futures.as_completed(done):
            future.result()
    print(f"{len(chosen)} of {len(every) + len(exact)} layouts and {len(chains)} chains, seed {seed}: {len(m.failed)} differ")
    return 1 if m.failed else 0


sys.exit(main())
