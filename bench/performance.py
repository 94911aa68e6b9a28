#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures kumi and its peers side by side on this machine and writes the table of docs/reference/performance.md.

    bench/performance.sh                   everything, about two hours on two cores
    bench/performance.sh comm gpt2         these sections anew, then the table from all results
    bench/performance.sh --table           the table alone

PyTorch comes from pip into a throw-away environment, or is that of PEER_ENV=DIR; Open MPI and MPICH are Debian's. A peer that is
not there is named, not fatal. Results are kept in --results, a JSON file a section.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import measure
import table

TORCH = "torch==2.15.*"
DOC = "docs/reference/performance.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
COMPARISON = re.compile(r"<!-- measured:comparison -->\n.*?<!-- /measured -->", re.S) # README's copy of the table's block


def environment(folder):
    """PyTorch's environment, made if PEER_ENV names none. None: there is none, and why was said."""
    given = os.environ.get("PEER_ENV")
    if given:
        return given if os.path.exists(given + "/bin/python") else None
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder + "/bin/pip", "install", "-q", TORCH, "numpy"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no PyTorch: {error}; PEER_ENV=DIR names an environment that has it")
        return None
    return folder


def two_cores():
    """The first two CPUs that share no core, of those that are ours."""
    cpus, seen = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            core = open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read()
        except OSError:
            core = cpu
        if core not in seen:
            seen.add(core)
            cpus.append(cpu)
    return cpus[:2]


def first_line(argv):
    try:
        out = subprocess.run(argv, capture_output=True, text=True).stdout
        return out.splitlines()[0].strip() if out else None
    except OSError:
        return None


def versions(env):
    torch = env and first_line([env + "/bin/python", "-c", "import torch; print(torch.__version__)"])
    openmpi, mpich = first_line(["mpirun.openmpi", "--version"]), first_line(["mpichversion"])
    kernel = ".".join(os.uname().release.split(".")[:2])
    preload = os.path.basename(measure.tuned_malloc().get("LD_PRELOAD", "glibc's, tuned"))
    return {"PyTorch": torch, "PyTorch's malloc": preload, "Open MPI": openmpi and openmpi.split()[-1], "MPICH": mpich and mpich.split()[-1],
            "Linux": kernel}


def load_all(folder):
    results = {}
    for name in measure.SECTIONS:
        path = f"{folder}/{name}.json"
        if os.path.exists(path):
            results[name] = json.load(open(path))
    return results


def write_table(results, path):
    text = open(path).read()
    if BEGIN not in text or END not in text:
        sys.exit(f"{path}: no marks {BEGIN} … {END}")
    head, rest = text.split(BEGIN, 1)
    with open(path, "w") as f:
        f.write(head + BEGIN + "\n" + table.markdown(results) + END + rest.split(END, 1)[1])
    with open("README.md") as f:
        readme = f.read()
    if path == DOC and results:
        with open("README.md", "w") as f:
            f.write(COMPARISON.sub(lambda _: table.comparison(results), readme))
    print(f"{path} has the table")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) # like Ctrl-C: ends child processes and removes the folder
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("section", nargs="*", metavar="SECTION", help="of: " + " ".join(measure.SECTIONS))
    p.add_argument("--build", default="build", help="the build folder (default: build)")
    p.add_argument("--results", default="bench/results", help="where results are kept (default: bench/results)")
    p.add_argument("--cpus", help="CPUs to run on, as in 0,1 (default: two that share no core)")
    p.add_argument("--turns", type=int, default=3, help="turns of kumi and its peers, whose medians count (default: 3)")
    p.add_argument("--quick", action="store_true", help="try everything with few steps; figures mean nothing")
    p.add_argument("--table", action="store_true", help="write the table from the results that are there")
    p.add_argument("--doc", default=DOC, help="the file with the table")
    a = p.parse_args()
    unknown = [s for s in a.section if s not in measure.SECTIONS]
    if unknown:
        p.error(f"{unknown[0]}: no such section; of: {' '.join(measure.SECTIONS)}")
    if not a.table:
        if not os.access(a.build + "/kumi", os.X_OK):
            p.error(f"{a.build}/kumi: not there; build it, or name --build")
        cpus = [int(c) for c in a.cpus.split(",")] if a.cpus else two_cores()
        os.sched_setaffinity(0, cpus)
        os.makedirs(a.results, exist_ok=True)
        work = tempfile.mkdtemp(prefix="kumi-bench-", dir=os.path.abspath(a.results))
        try:
            measure_all(a, work, cpus)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    write_table(load_all(a.results), a.doc)


def measure_all(a, work, cpus):
    sections = a.section or list(measure.SECTIONS)
    needs_torch = {"gpt2", "accumulation", "zero", "long", "nanogpt", "llama", "enja", "resnet", "comm"} & set(sections)
    env = environment(work + "/env") if needs_torch else None
    info = json.loads(subprocess.run([a.build + "/kumi", "info", "--json"], capture_output=True, text=True, check=True).stdout)
    machine = {"cpu": info["cpu"]["model"], "isa": info["cpu"]["isa"], "cpus": cpus, "versions": versions(env)}
    bench = measure.Bench(os.path.abspath(a.build), env, work, a.quick, a.turns)
    if "limits" not in sections: # mfu and rooflines use the limits of the same run
        bench.attempt("limits", lambda: measure.limits(bench))
    for name in sections:
        print(f"{name} …", flush=True)
        bench.notes = []
        begin = datetime.datetime.now()
        data = bench.attempt(name, lambda: measure.SECTIONS[name](bench))
        now = datetime.datetime.now()
        result = {"machine": machine, "date": now.strftime("%Y-%m-%d"), "seconds": round((now - begin).total_seconds()), "quick": a.quick,
                  "not_measured": bench.notes, "data": data}
        with open(f"{a.results}/{name}.json", "w") as f:
            json.dump(result, f, indent=1)
        print(f"{name}: {result['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
