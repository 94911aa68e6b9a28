#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures kumi and its peers side by side on this machine and writes the table of its kind of CPU.

    bench/performance.sh                   every section
    bench/performance.sh comm gpt2         these sections anew; the table keeps the others as they were
    bench/performance.sh --table           the tables anew from what they hold
    bench/performance.sh --readme          the same, and README and the guide show blocks of the table of this kind of CPU

A kind of CPU is its model and best instruction set. Its table is docs/internals/performance/KIND.md; KIND.json beside it holds what the table shows, by
section, so that later runs on such a machine complete or replace sections. bench/results/KIND has every figure of the last run of a section.

PyTorch comes from pip into a throw-away environment, or is that of PEER_ENV=DIR; Open MPI and MPICH are Debian's; ENJA=DIR names the corpus of enja,
LLAMA_CPP=PATH and LLAMA_CPP_MODEL=FILE.gguf name llama-bench and a model of the size of GPT-2 124M. A peer that is not there is named, not fatal.

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

import hosts
import measure
import parameter_server
import table

TORCH = "torch==2.15.*"
TABLES = "docs/internals/performance"
INDEX = {"README.md": "docs/internals/performance", "docs/reference/performance.md": "../internals/performance"} # pages with links to all tables
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
COPIES = {"README.md": "comparison", "docs/guide/parallelism.md": "parallel", "docs/guide/parameter-server.md": "parameter-server"} # pages with a block of a table
LINKS = re.compile(r"<!-- tables -->\n.*?<!-- /tables -->", re.S)


measure.SECTIONS["hosts"] = hosts.hosts, 9
measure.SECTIONS["ps"] = parameter_server.ps, 30
table.BLOCKS["parameter-server"] = parameter_server.modes
table.ROWS.append(("Parameter server, 2 workers and 1 server", parameter_server.checks))
table.ROWS.append(("Two hosts in network namespaces", hosts.checks))


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


def build_kumi(build):
    """The commit that is recorded is that of the sources, so the program must be theirs. An error: it is not."""
    if os.path.exists(build + "/build.ninja"):
        done = subprocess.run(["ninja", "-C", build, "--quiet", "kumi"], capture_output=True, text=True)
        return done.returncode and f"{build}: {(done.stdout.splitlines() or ['?'])[-1]}"
    if not os.access(build + "/kumi", os.X_OK):
        return f"{build}/kumi: not there; build it, or name --build"
    files = [os.path.join(folder, name) for root in ("src", "include", "cmake") for folder, _, names in os.walk(root) for name in names]
    if max(map(os.path.getmtime, files)) > os.path.getmtime(build + "/kumi"):
        return f"{build}/kumi: older than the sources; build it"
    return None


def revision():
    """The commit, with a plus if files differ from it."""
    commit = first_line(["git", "rev-parse", "--short", "HEAD"])
    return commit and commit + ("+" if first_line(["git", "status", "--porcelain", "--untracked-files=no"]) else "")


def kind_of(cpu, isa):
    """A kind of CPU as a file's name: "intel-xeon-amx"."""
    words = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b|\b\d+-Core\b|@.*| with .*", " ", cpu, flags=re.I)
    return "-".join(re.findall(r"[a-z0-9]+", f"{words} {isa}".lower()))


def slim(value):
    """What a table shows: of a run its speed, memory and communication; four digits, nothing without a value."""
    if isinstance(value, dict):
        return {k: slim(v) for k, v in value.items() if v is not None and ("step_ms" not in value or k in table.SHOWN)}
    if isinstance(value, list):
        return [slim(v) for v in value if not table.is_unused(v)]
    return float(f"{value:.4g}") if isinstance(value, float) and value else value


def load(folder, kind):
    path = f"{folder}/{kind}.json"
    return json.load(open(path)) if os.path.exists(path) else {"sections": {}}


def save(folder, kind, store):
    """A section a line: a run of some sections changes only theirs."""
    lines = [f"{json.dumps(k)}: {json.dumps(slim(v), separators=(',', ':'))}" for k, v in store["sections"].items()]
    with open(f"{folder}/{kind}.json", "w") as f:
        f.write(f'{{"cpu": {json.dumps(store["cpu"])}, "isa": {json.dumps(store["isa"])}, "sections": {{\n' + ",\n".join(lines) + "\n}}\n")


def replace_in(path, pattern, text):
    with open(path) as f:
        old = f.read()
    new = pattern.sub(lambda _: text, old, count=1)
    if new != old:
        with open(path, "w") as f:
            f.write(new)


def write_table(folder, kind):
    """The part of the page between its marks; notes around it stay."""
    store, path = load(folder, kind), f"{folder}/{kind}.md"
    if not store["sections"]: # nothing was measured, or its page is older than its results
        return
    title = f"# {table.title(store)}\n\nMeasured as [performance](../../reference/performance.md) says.\n\n{BEGIN}\n{END}\n"
    page = open(path).read() if os.path.exists(path) else title
    head, rest = page.split(BEGIN, 1)
    with open(path, "w") as f:
        f.write(head + BEGIN + "\n" + table.markdown(kind, store, measure.SECTIONS) + END + rest.split(END, 1)[1])
    print(f"{path} has the table")


def copy_block(path, name, kind=None):
    """A page's block as the table has it, of the kind that the page shows or of another one whose table has the block."""
    block = re.compile(rf"<!-- measured:{name}-([\w-]+) -->\n.*?<!-- /measured -->", re.S)
    shown = block.search(open(path).read()).group(1)
    for of in [kind, shown]:
        found = of and block.search(open(f"{TABLES}/{of}.md").read())
        if found:
            replace_in(path, block, found.group(0))
            return


def write_pages(kind=None):
    """Links to all tables; blocks of tables."""
    for path, name in COPIES.items():
        copy_block(path, name, kind)
    pages = sorted(name for name in os.listdir(TABLES) if name.endswith(".md"))
    for path, folder in INDEX.items():
        titles = [open(f"{TABLES}/{name}").readline().lstrip("# ").strip() for name in pages]
        links = ", ".join(f"[{title}]({folder}/{name})" for title, name in zip(titles, pages))
        replace_in(path, LINKS, f"<!-- tables -->\nTables by kind of CPU: {links}.\n<!-- /tables -->")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) # like Ctrl-C: ends child processes and removes the folder
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.epilog = "minutes on two cores of a Zen 4: " + ", ".join(f"{name} {m:g}" for name, (_, m) in measure.SECTIONS.items()) + \
               f"; together {sum(m for _, m in measure.SECTIONS.values()):.0f}; disturbed turns that are repeated come on top"
    p.add_argument("section", nargs="*", metavar="SECTION", help="of: " + " ".join(measure.SECTIONS))
    p.add_argument("--build", default="build", help="the build folder (default: build)")
    p.add_argument("--results", default="bench/results", help="where all figures are kept (default: bench/results)")
    p.add_argument("--cpus", help="CPUs to run on, as in 0,1 (default: two that share no core)")
    p.add_argument("--turns", type=int, default=3, help="turns of kumi and its peers, whose medians count (default: 3; at most 2 where a turn takes minutes)")
    p.add_argument("--mask-amx", action="store_true", help="measure a CPU with AMX as if it had none, kumi and its peers alike: many clouds mask it")
    p.add_argument("--quick", action="store_true", help="try everything with few steps; figures mean nothing, and their table stays in --results")
    p.add_argument("--table", action="store_true", help="write the tables from what they hold")
    p.add_argument("--readme", action="store_true", help="README and the guide show blocks of the table of this kind of CPU")
    p.add_argument("--tables", help=f"the folder of the tables (default: {TABLES})")
    a = p.parse_args()
    a.tables = a.tables or (a.results + "/quick" if a.quick else TABLES)
    unknown = [s for s in a.section if s not in measure.SECTIONS]
    if unknown:
        p.error(f"{unknown[0]}: no such section; of: {' '.join(measure.SECTIONS)}")
    os.makedirs(a.tables, exist_ok=True)
    kind = None
    if a.mask_amx:
        os.environ.update(measure.MASK_AMX)
    if not a.table:
        error = build_kumi(a.build)
        if error:
            p.error(error)
        info = json.loads(subprocess.run([a.build + "/kumi", "info", "--json"], capture_output=True, text=True, check=True).stdout)
        kind = kind_of(info["cpu"]["model"], info["cpu"]["isa"]) + ("-masked" if a.mask_amx else "")
    if not a.table and not a.readme:
        a.results += f"/{kind}"
        cpus = [int(c) for c in a.cpus.split(",")] if a.cpus else two_cores()
        os.sched_setaffinity(0, cpus)
        os.makedirs(a.results, exist_ok=True)
        work = tempfile.mkdtemp(prefix="kumi-bench-", dir=os.path.abspath(a.results))
        try:
            measure_all(a, work, cpus, kind, info)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    for name in sorted(os.listdir(a.tables)) if a.table else [kind + ".json"]:
        if name.endswith(".json"):
            write_table(a.tables, name.removesuffix(".json"))
    if a.readme and not os.path.exists(f"{a.tables}/{kind}.md"):
        p.error(f"--readme: {a.tables}/{kind}.md: not there; measure first")
    if a.tables == TABLES:
        write_pages(kind if a.readme else None)


def measure_all(a, work, cpus, kind, info):
    sections = a.section or list(measure.SECTIONS)
    needs_torch = {"gpt2", "accumulation", "zero", "parallel", "long", "nanogpt", "llama", "enja", "resnet", "sample", "comm", "hosts"} & set(sections)
    env = environment(work + "/env") if needs_torch else None
    bench = measure.Bench(os.path.abspath(a.build), env, work, a.quick, a.turns)
    if "limits" not in sections: # mfu and rooflines use the limits of the same run
        bench.limits = bench.attempt("limits", lambda: measure.limits(bench)) or {}
    begun = {"commit": revision(), "version": info["version"], "cpus": cpus, "versions": versions(env), "quick": a.quick}
    for name in sections:
        print(f"{name} …", flush=True)
        bench.notes, bench.discarded, bench.peaks = [], 0, {}
        begin = datetime.datetime.now()
        data = bench.attempt(name, lambda: measure.SECTIONS[name][0](bench))
        bench.limits = data if name == "limits" and data else bench.limits
        now = datetime.datetime.now()
        result = {"date": now.strftime("%Y-%m-%d"), **begun, "seconds": round((now - begin).total_seconds()), "discarded": bench.discarded,
                  "peak_shares": bench.peak_shares(), "not_measured": bench.notes, "data": data}
        with open(f"{a.results}/{name}.json", "w") as f:
            f.write(json.dumps(result, indent=1) + "\n")
        if data: # at once: what comes later may fail
            store = load(a.tables, kind)
            save(a.tables, kind, {"cpu": info["cpu"]["model"] + (" with AMX masked" if a.mask_amx else ""), "isa": info["cpu"]["isa"], "sections": {**store["sections"], name: result}})
        print(f"{name}: {result['seconds']} s, {bench.discarded} turns discarded", flush=True)


if __name__ == "__main__":
    main()
