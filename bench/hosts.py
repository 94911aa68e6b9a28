# SPDX-License-Identifier: Apache-2.0
"""Section `hosts` of bench/performance.py: two and four hosts in network namespaces of this machine (tests/hosts/hosts.sh, as root)."""
import json
import os
import shutil
from functools import partial

import measure
from measure import GPT2, MIB, Failed, canonical, same_rows, trial, turns_of

TOOL, AGENT = os.path.abspath("tests/hosts/hosts.sh"), os.path.abspath("tests/hosts/agent")
SHAPED_BITS = 10**9 # a second, of each link


def hosts_of(n, ranks):
    return ",".join(f"h{i}:{ranks}" for i in range(n))


def within(n, *argv, limit=None):
    """argv on n hosts' hub, for its time."""
    words = " ".join(f"'{a}'" for a in argv)
    return ["bash", TOOL, "with", str(n), "bash", "-c", f"{f'bash {TOOL} limit {limit} && ' if limit else ''}exec {words}"]


def mpirun(make, n_hosts, ranks, *argv):
    """A program under an MPI's launcher, over TCP between the hosts."""
    n, at = str(n_hosts * ranks), hosts_of(n_hosts, ranks)
    if make == "mpich":
        return ["env", "UCX_TLS=tcp,self", "mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", AGENT, "-iface", "br0", "-hosts", at, "-n", n, *argv]
    return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", n, "--host", at, "--map-by", "slot", "-x", "KUMI_PLUGINS", "-x", "KUMI_CACHE",
            "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", AGENT, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", "eth0",
            "--mca", "oob_tcp_if_include", "10.77.0.0/24", *argv]


def all_reduces(b, sizes):
    """name -> (hosts, command for a size): kumi over tcp and MPI, the MPIs themselves, Gloo, plain sockets."""
    bench = lambda size: (b.kumi, "bench", "comm", "all_reduce", "--bytes", str(size), "--json")
    own = lambda n, ranks, size: within(n, *bench(size), "-H", hosts_of(n, ranks), "--rsh", AGENT)
    calls = {f"kumi {n}x{ranks}": partial(own, n, ranks) for n, ranks in ((2, 1), (2, 2), (4, 1))}
    for make in "openmpi", "mpich":
        program = f"{b.work}/mpi_{make}"
        if not shutil.which(f"mpicc.{make}") or b.attempt(make, lambda: b.run([f"mpicc.{make}", "-O2", "-o", program, "bench/mpi_comm.c"])) is None:
            b.lack(f"{make}: there is no mpicc.{make}")
            continue
        calls[make] = lambda size, make=make, program=program: within(2, *mpirun(make, 2, 1, program, str(size)))
        calls[f"kumi by {make}"] = lambda size, make=make: within(2, *mpirun(make, 2, 1, *bench(size)))
    pair = lambda size, *argv: within(2, "sh", "-c", f'"$0" run h0 "$@" --rank 0 --most {size} & "$0" run h1 "$@" --rank 1 --most {size} & wait', TOOL, *argv, "--master", "10.77.0.1")
    calls["sockets"] = lambda size: pair(size, "python3", "bench/bare_exchange.py")
    if b.python:
        calls["gloo"] = lambda size: pair(size, b.python, "bench/gloo_comm.py", "--interface", "eth0")
    return {f"{name} {size}": partial(rows_of, b, make, size) for size in sizes for name, make in calls.items() if size == sizes[-1] or name not in ("kumi 4x1", "sockets")}


def rows_of(b, argv, size):
    rows = [canonical(r) for r in b.json_lines(argv(size), limit_s=120, env={"KUMI_PLUGINS": os.path.dirname(b.kumi)}) if "error" not in r]
    rows = [r for r in rows if r["collective"] == "all_reduce" and r["bytes"] == size and r["dtype"] in (None, "f32")]
    if not rows:
        raise Failed("no row of this size")
    return rows


def training(b, dtype, where, limit, steps, sets):
    """As trial, on hosts h0 and h1; with the bytes that a host sends to the other in a step."""
    wrap = within(2, "@", limit=limit)
    run = trial(b, GPT2, 2, 1, steps, (f"precision.compute={dtype}", "parallel.host_state=private", *sets),
                around=(lambda argv: wrap[:-1] + [wrap[-1].replace("'@'", " ".join(f"'{a}'" for a in argv + ["-H", hosts_of(2, 1), "--rsh", AGENT]))]) if where else None)
    moved = json.load(open(f"{b.work}/run/summary.json"))["exchanged_a_step"]
    return {**run, "far_bytes": moved["far_bytes"] / 2 if where else 0}


def hosts(b):
    if b.attempt("namespaces", lambda: b.run(within(1, "true"))) is None:
        return None
    sizes = (8, MIB) if b.quick else (8, MIB, 64 * MIB)
    turns = turns_of(b, all_reduces(b, sizes), b.turns)
    result = {"all_reduce": {name: same_rows(sum(results, [])) for name, (results, _) in turns.items()}}
    steps, sets, calls = (4, ("model.n_layer=1",), {}) if b.quick else (8, (), {})
    for dtype in ("bf16",) if b.quick else ("bf16", "f32"):
        for name, where, limit in ("shared memory", False, None), ("veth", True, None), ("1 Gbit/s", True, "1gbit"):
            calls[f"{name} {dtype}"] = partial(training, b, dtype, where, limit, steps, sets)
    result.update(measure.take_turns(b, calls, most=2))
    return result


def checks(r):
    """Targets, in the form of table.py's rows."""
    from table import at_least, at_most, least, ratio
    small, middle, large = 8, MIB, 64 * MIB
    data, reduced = r.of("hosts"), r.of("hosts").get("all_reduce") or {}
    us = lambda name, size: min((row["median_us"] for row in reduced.get(f"{name} {size}") or []), default=None)
    best_mpi = min((t for t in (us(make, large) for make in ("openmpi", "mpich")) if t), default=None)
    out = [at_least("tcp all-reduce 64 MiB × Gloo", ratio(us("gloo", large), us("kumi 2x1", large)), 1.5),
           at_least("× plain sockets", ratio(us("sockets", large), us("kumi 2x1", large)), 0.8),
           at_least("× the better MPI", ratio(best_mpi, us("kumi 2x1", large)), 1.2),
           at_most("8 B spinning (2 hosts × 1), µs", us("kumi 2x1", small), 8), at_most("8 B asleep (2 × 2), µs", us("kumi 2x2", small), 40)]
    for make in "openmpi", "mpich":
        found = [ratio(us(make, size), us(f"kumi by {make}", size)) for size in (middle, large)]
        out.append(at_least(f"mpi × MPI_Allreduce of {make}, from 1 MiB", least(*found), 1))
    out.append(at_least("2 × 2 × flat (4 × 1)", ratio(us("kumi 4x1", large), us("kumi 2x2", large)), 1.5))
    for dtype in "bf16", "f32":
        step = {name: ((data.get(f"{name} {dtype}") or {}).get("step_ms") or {}).get("median") for name in ("shared memory", "veth", "1 Gbit/s")}
        far = (data.get(f"1 Gbit/s {dtype}") or {}).get("far_bytes")
        bound = max(step["shared memory"], far * 8e3 / SHAPED_BITS) if far and step["shared memory"] else None
        out += [at_least(f"GPT-2 124M over veth × shared memory, {dtype}", ratio(step["shared memory"], step["veth"]), 0.93),
                at_most(f"1 Gbit/s / max(compute, bytes / bandwidth), {dtype}", ratio(step["1 Gbit/s"], bound), 1.1)]
    return out
