# SPDX-License-Identifier: Apache-2.0
"""Trainings of every layout over hosts and transports, whose digest must be that of one rank: matrix.py KUMI BUILD FOLDER

    hosts x ranks   1x8 2x4 4x2 8x1 1+3 2+3 3x2       transport   tcp, Open MPI, MPICH, where they are there
    zero            0 1 2 3, with one group or two    host_state  private, and shared where the hosts are even
    compute         f32, bf16                         sums        1 micro-batch, 2 added up, 2 reduced each

and chains: runs of three steps, each in another of these layouts. Hosts are pretended (KUMI_HOST), ranks are processes.
KUMI_TEST_ALL=1 runs all rows and N_CHAINS chains, else a sample by KUMI_TEST_SEED. JOBS: runs at a time.
"""
import concurrent.futures
import itertools
import json
import os
import random
import shutil
import subprocess
import sys

KUMI, BUILD, FOLDER = sys.argv[1:]
LAYOUTS = {"1x8": [8], "2x4": [4, 4], "4x2": [2] * 4, "8x1": [1] * 8, "1+3": [1, 3], "2+3": [2, 3], "3x2": [2] * 3}
SHARDS = {4: 8, 5: 5, 6: 6, 8: 8} # ranks: virtual shards
SUMS = {"one": {}, "two": {"accumulation": 2}, "micro": {"accumulation": 2, "grad_sync": "micro"}}
N_ROWS, N_CHAINS, STEPS, DEADLINE_S = 10, 60, 3, 180
MAKES = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", "1"],
    "mpich": ["mpiexec.hydra"],
}
# A rank of MPI learns which host it pretends to be on from the sizes of the hosts.
PLACE = """
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} first=0 host=0
for n in $SIZES; do
    [ $rank -ge $((first + n)) ] || break
    first=$((first + n)) host=$((host + 1))
done
export KUMI_HOST=h$host OMPI_COMM_WORLD_LOCAL_RANK=$((rank - first)) OMPI_COMM_WORLD_LOCAL_SIZE=$n
export MPI_LOCALRANKID=$((rank - first)) MPI_LOCALNRANKS=$n
[ -n "${OMPI_COMM_WORLD_RANK:-}" ] && unset MPI_LOCALRANKID MPI_LOCALNRANKS || unset OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
exec "$@"
"""


def transports():
    return ["tcp"] + [m for m, argv in MAKES.items() if os.path.exists(f"{BUILD}/libkumi-mpi-{m}.so") and shutil.which(argv[0])]


def rows():
    """(hosts, transport, zero, groups, host_state, compute, sums) of all that is admissible."""
    found = []
    for row in itertools.product(LAYOUTS, transports(), range(4), (1, 2), ("private", "shared"), ("f32", "bf16"), SUMS):
        hosts, transport, zero, groups, state, _, _ = row
        sizes, n = LAYOUTS[hosts], sum(LAYOUTS[hosts])
        shard = n // groups
        if groups > 1 and (zero == 0 or n % groups or shard & (shard - 1)):
            continue
        if state == "shared" and (len(set(sizes)) > 1 or len(sizes) == n):
            continue
        if len(sizes) == 1 and (transport != "tcp" or (state == "shared" and (zero or groups > 1))):
            continue # one host has no transport between hosts, and a shared copy no stage
        found.append(row)
    return found


def settings(row, v):
    _, _, zero, groups, state, compute, sums = row
    more = SUMS[sums]
    config = {
        "model": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 48, "n_positions": 16, "vocab_size": 256},
        "data": {"train": f"{FOLDER}/text", "val_fraction": 0.1},
        "train": {"steps": STEPS, "virtual_shards": v, "micro_batch": 1, "global_batch": v * more.get("accumulation", 1), "eval_tokens": 64,
                  "eval_every": 2, "threads": 1, "verify_every": 2},
        "precision": {"compute": compute},
        "parallel": {"zero": zero, "host_state": state, "persist_below": 1000, "grad_sync": more.get("grad_sync", "step")},
        "checkpoint": {"every": 1},
    }
    if groups > 1:
        config["parallel"]["replicate"] = groups
    return config


def command(row):
    hosts, transport = row[:2]
    sizes = LAYOUTS[hosts]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("KUMI_RANK", "OMPI_", "PMI", "SLURM_"))}
    env |= {"KUMI_CACHE": f"{FOLDER}/cache", "KUMI_PLUGINS": BUILD, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo",
            "SIZES": " ".join(map(str, sizes))}
    if len(sizes) == 1:
        return [KUMI, "train", "-n", str(sum(sizes))], env
    if transport == "tcp":
        return [KUMI, "train", "--rsh", "none", "-H", ",".join(f"h{i}:{n}" for i, n in enumerate(sizes))], env
    return MAKES[transport] + ["-n", str(sum(sizes)), "sh", "-c", PLACE, "sh", KUMI, "train"], env


def run(name, argv, env, config, more):
    """The digest that a training prints; None, and why."""
    path = f"{FOLDER}/{name}.json"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    argv = argv + [path, "--out", f"{FOLDER}/{name}"] + more
    session = f"{FOLDER}/{name}.mpi" # two launchers of Open MPI at once would create and remove one folder
    os.makedirs(session, exist_ok=True)
    env = env | {"OMPI_MCA_orte_tmpdir_base": session}
    try:
        p = subprocess.run(["timeout", "-k", "5", str(DEADLINE_S)] + argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           check=False)
    except OSError as e:
        return None, str(e)
    digests = [x for x in p.stdout.split("\n") if x.startswith("digest: ")]
    return (digests[0], "") if p.returncode == 0 and len(digests) == 1 else (None, f"exit {p.returncode}: {p.stderr[-600:]}")


def bytes_differ(name):
    """The planned bytes were sent and stored."""
    with open(f"{FOLDER}/{name}/summary.json", encoding="utf-8") as f:
        step = json.load(f).get("exchanged_a_step") or {}
    return [k for a, k in (("planned_bytes", "moved_bytes"), ("planned_far_bytes", "far_bytes")) if step.get(a) != step.get(k)]


class Matrix:
    def __init__(self):
        self.one, self.failed = {}, []

    def reference(self, row):
        n = sum(LAYOUTS[row[0]])
        key = (SHARDS[n], *row[5:])
        if key not in self.one:
            name = "one-" + "-".join(map(str, key))
            digest, why = run(name, [KUMI, "train", "-n", "1"], command(("1x8", "tcp"))[1], settings(("", "", 0, 1, "auto", *row[5:]), SHARDS[n]), [])
            self.one[key] = digest or f"none: {why}"
        return self.one[key]

    def expect(self, what, row, digest, why):
        if digest != self.reference(row):
            self.failed.append(what)
            print(f"{what}: {digest or why}, not {self.reference(row)}", flush=True)

    def row(self, i, row):
        name = f"row-{i}"
        argv, env = command(row)
        digest, why = run(name, argv, env, settings(row, SHARDS[sum(LAYOUTS[row[0]])]), [])
        self.expect(" ".join(map(str, row)), row, digest, why)
        if digest and bytes_differ(name):
            self.failed.append(name)
            print(f"{' '.join(map(str, row))}: {bytes_differ(name)} are not those planned", flush=True)
        shutil.rmtree(f"{FOLDER}/{name}", ignore_errors=True)

    def chain(self, i, links):
        for step, row in enumerate(links):
            argv, env = command(row)
            digest, why = run(f"chain-{i}", argv, env, settings(row, 8), ["--resume=auto", "--until", str(step + 1)])
            if digest is None:
                break
        self.expect(" -> ".join(" ".join(map(str, r)) for r in links), links[-1], digest, why)
        shutil.rmtree(f"{FOLDER}/chain-{i}", ignore_errors=True)


def main():
    is_all, seed = os.environ.get("KUMI_TEST_ALL") == "1", int(os.environ.get("KUMI_TEST_SEED", "1"))
    rng, every, m = random.Random(seed), rows(), Matrix()
    with open("docs/internals/numerics.md", "rb") as source, open(f"{FOLDER}/text", "wb") as text: # any text
        text.write(source.read(20000))
    chosen = every if is_all else rng.sample(every, N_ROWS)
    chains = []
    for _ in range(N_CHAINS if is_all else 2): # of one global batch and one dtype
        of = rng.choice([r[5:] for r in every])
        chains.append(rng.sample([r for r in every if r[5:] == of and SHARDS[sum(LAYOUTS[r[0]])] == 8], 3))
    for row in chosen + [c[-1] for c in chains]:
        m.reference(row)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        done = [pool.submit(m.row, i, r) for i, r in enumerate(chosen)] + [pool.submit(m.chain, i, c) for i, c in enumerate(chains)]
        for future in concurrent.futures.as_completed(done):
            future.result()
    print(f"{len(chosen)} of {len(every)} layouts and {len(chains)} chains over {', '.join(transports())}, seed {seed}: {len(m.failed)} differ")
    return 1 if m.failed else 0


sys.exit(main())
