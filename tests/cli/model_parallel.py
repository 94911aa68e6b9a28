# SPDX-License-Identifier: Apache-2.0
"""Trainings of every model-parallel layout, whose digest must be that of one rank (of tp ranks with the same sp): model_parallel.py KUMI FOLDER

    model      gpt2 (dropout, tied table), gpt2 with an output layer of its own, llama (grouped queries)
    tp         1 2, 2 and 4 with sp                pp         1 2 4 under every schedule, and one from a file
    dp         1 2                                 zero       0 1 2, without a pipeline also 3
    recompute  none, selective, full

and chains: runs of three steps, each in another of these layouts. KUMI_TEST_ALL=1 runs all rows and N_CHAINS chains, else a sample by
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
N_ROWS, N_CHAINS, STEPS, DEADLINE_S, SHARDS, MICRO = 12, 40, 3, 120, 2, 4


def rows():
    """(model, (tp, sp), pp, schedule, dp, zero, recompute) of all that differ, on at most 8 ranks."""
    return [r for r in itertools.product(MODELS, ((1, False), (2, False), (2, True), (4, True)), (1, 2, 4), SCHEDULES, (1, 2), range(4), ("none", "selective", "full"))
            if (r[2] > 1 or r[3] == "1f1b") # one stage has no schedule
            and (r[4] > 1 or r[5] == 0) and (r[2] == 1 or r[5] < 3) and (r[1][0] < 4 or r[2] * r[4] < 3)
            and not (r[0] == "llama" and r[1][0] > 2)] # it has two key heads


def settings(row):
    model, (tp, sp), pp, schedule, dp, zero, recompute = row
    parallel = {"tp": tp, "sp": sp, "zero": zero, "persist_below": 100, "host_state": "private"}
    if pp > 1:
        parallel |= {"pp": pp, "pp_schedule": f"{FOLDER}/{pp}-{dp}.csv" if schedule == "file" else schedule}
    return {
        "model": MODELS[model],
        "data": {"train": f"{FOLDER}/text", "val_fraction": 0.1},
        "train": {"steps": STEPS, "virtual_shards": SHARDS, "micro_batch": 1, "global_batch": SHARDS * MICRO, "eval_tokens": 32, "eval_every": 2,
                  "threads": 1, "verify_every": 2},
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
    p = kumi("train", path, "-n", str(row[1][0] * row[2] * row[4]), "--out", f"{FOLDER}/{name}", *more)
    digests = [x for x in p.stdout.split("\n") if x.startswith("digest: ")]
    return (digests[0], "") if p.returncode == 0 and len(digests) == 1 else (None, f"exit {p.returncode}: {p.stderr[-600:]}")


def write_schedules():
    """Files for every number of coordinates and micro-batches: those of 1f1b."""
    for pp, dp in itertools.product((2, 4), (1, 2)):
        row = ("tied", (1, False), pp, "1f1b", dp, 0, "none")
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
        key = row[:2]
        if key not in self.one:
            digest, why = run(f"one-{row[0]}-{row[1][0]}-{row[1][1]}", (*key, 1, "1f1b", 1, 0, "none"), [])
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
    rng, every, m = random.Random(seed), rows(), Matrix()
    with open("docs/internals/numerics.md", "rb") as source, open(f"{FOLDER}/text", "wb") as text: # any text
        text.write(source.read(20000))
    write_schedules()
    chosen = every if is_all else rng.sample(every, N_ROWS)
    chains = []
    for _ in range(N_CHAINS if is_all else 2): # of one model and one tp
        of = rng.choice(every)[:2]
        chains.append(rng.sample([r for r in every if r[:2] == of], 3))
    for row in chosen + [c[-1] for c in chains]:
        m.reference(row)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        done = [pool.submit(m.row, i, r) for i, r in enumerate(chosen)] + [pool.submit(m.chain, i, c) for i, c in enumerate(chains)]
        for future in concurrent.futures.as_completed(done):
            future.result()
    print(f"{len(chosen)} of {len(every)} layouts and {len(chains)} chains, seed {seed}: {len(m.failed)} differ")
    return 1 if m.failed else 0


sys.exit(main())
