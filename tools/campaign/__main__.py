# SPDX-License-Identifier: Apache-2.0
"""Harms trainings in thousands of ways, each reproducible alone, and counts what was lost.

    python3 tools/campaign BUILD [--seed S] [--kills N] [--signals N] [--corruptions N] [--hostile N] [--hosts N] [--links N] [--jobs J] [--keep DIR]
    python3 tools/campaign BUILD --only kills:17        the same experiment alone, its folder kept

kills        SIGKILL of launcher, helper, ranks at any moment of training, overwriting, export and import
signals      every other signal, alone and in pairs, from the first instruction on
corruptions  every file of runs and of exported weights is damaged in a dozen ways, then read by every command
hostile      a table of configurations, models, data, environments, command lines and limits
hosts        faults of jobs on several hosts, which this machine pretends to be, over TCP and MPI
links        links between hosts in network namespaces that are down for a while, or for good; as root

A finding is one line on standard output. Exit code 1 if there is any. docs/internals/campaign.md says what is expected.
"""
import argparse
import collections
import concurrent.futures
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback

import base
import corruptions
import hostile
import hosts
import kills
import links
import signals

KINDS = {"kills": kills, "signals": signals, "corruptions": corruptions, "hostile": hostile, "hosts": hosts, "links": links}
COUNTS = {"kills": 160, "signals": 140, "corruptions": 400, "hostile": None, "hosts": 200, "links": 24}


def arguments():
    p = argparse.ArgumentParser(prog="tools/campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", help="the build folder, or a kumi command")
    p.add_argument("--seed", type=int, default=1)
    for kind, count in COUNTS.items():
        p.add_argument(f"--{kind}", type=int, metavar="N", help=f"experiments (default: {count or 'all rows'}; without any of these options all kinds)")
    p.add_argument("--only", action="append", metavar="KIND:INDEX", help="one experiment alone; its folder is kept")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--patience", type=float, default=1, help="factor of all deadlines")
    p.add_argument("--keep", metavar="DIR", help="scratch folder, which stays; without it folders of experiments with findings only")
    p.add_argument("--verbose", action="store_true", help="a line for each experiment")
    return p.parse_args()


def chosen(a, bench):
    """(kind, index) of every experiment."""
    if a.only:
        return [(o.split(":")[0], int(o.split(":")[1])) for o in a.only]
    is_any = any(getattr(a, k) is not None for k in KINDS)
    pairs = []
    for kind, module in KINDS.items():
        count = getattr(a, kind)
        if count is None:
            count = 0 if is_any else COUNTS[kind] or module.count(bench)
        if kind == "hostile" and count and count < module.count(bench): # a sample of the quick rows
            quick = [i for i in range(module.count(bench)) if module.is_quick(bench.rows[i])]
            pairs += [(kind, i) for i in base.random.Random(a.seed).sample(quick, count)]
        else:
            pairs += [(kind, i) for i in range(min(count, module.count(bench)) if kind == "hostile" else count)]
    return pairs


def perform(bench, kind, index):
    x = base.Experiment(bench, kind, index)
    begin = time.monotonic()
    try:
        KINDS[kind].one(x)
    except Exception: # the campaign goes on, and says where it broke
        x.note(base.EXIT, "the campaign itself failed: " + traceback.format_exc().replace("\n", " | "))
    x.kill_all()
    x.seconds = time.monotonic() - begin
    return x


def report(a, x):
    for fault, text in x.findings:
        print(f"{x.name}: {fault}: {text} [{x.title.strip('; ')}]", flush=True)
    if a.verbose:
        print(f"{x.name}: {x.seconds:.1f} s, {len(x.commands)} commands, {x.n_events} events, {x.title.strip('; ')}", flush=True)
    if not a.keep and not a.only and not x.findings:
        shutil.rmtree(x.dir, ignore_errors=True)


def table(done, kinds):
    head = ["kind", "experiments", "events", "commands", *base.FAULTS]
    print("  ".join(f"{h:>11}" for h in head))
    total = 0
    for kind in kinds:
        of = [x for x in done if x.kind == kind]
        faults = [sum(f == fault for x in of for f, _ in x.findings) for fault in base.FAULTS]
        total += sum(faults)
        cells = [kind, len(of), sum(x.n_events for x in of), sum(len(x.commands) for x in of), *faults]
        print("  ".join(f"{c:>{max(11, len(h))}}" for c, h in zip(cells, head)))
    return total


def groups(done):
    """What was done over which transport: how the jobs ended that it reached, and how many seconds later."""
    of = {}
    for x in done:
        if x.group:
            of.setdefault(x.group, []).append(x)
    for (fault, transport), all_of in sorted(of.items()):
        reached = [x for x in all_of if x.fault_s]
        seconds = sorted(x.gone_s for x in reached if x.gone_s is not None) or [0]
        codes = collections.Counter("none" if x.code is None else "a signal" if x.code < 0 else str(x.code) for x in reached)
        print(f"{fault:>36}, {transport:8} {len(all_of):3} jobs, {len(reached):3} reached; exit code {', '.join(f'{c}: {n}' for c, n in sorted(codes.items()))}; "
              f"gone after {seconds[len(seconds) // 2]:.2f} s, at most {seconds[-1]:.2f} s; {sum(len(x.findings) for x in all_of)} findings")


def main():
    a = arguments()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the commands would ignore it
    folder = a.keep or tempfile.mkdtemp(prefix="kumi-campaign-")
    bench = base.Bench(a.build, folder, a.seed, a.patience)
    if not os.access(bench.kumi, os.X_OK):
        raise SystemExit(f"campaign: {bench.kumi}: not there; give a build folder")
    bench.prepare()
    pairs = chosen(a, bench)
    kinds = [k for k in KINDS if any(k == kind for kind, _ in pairs)]
    for kind in kinds:
        KINDS[kind].prepare(bench)
    begin, done = time.monotonic(), []
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(perform, bench, *pair) for pair in pairs]):
            done.append(future.result())
            report(a, done[-1])
    total = table(done, kinds)
    groups(done)
    print(f"{len(done)} experiments, seed {a.seed}, {time.monotonic() - begin:.0f} s, {total} findings")
    if not a.keep and not total and not a.only:
        shutil.rmtree(folder, ignore_errors=True)
    elif total or a.only:
        print(f"folders: {folder}; one alone: --seed {a.seed} --only KIND:INDEX")
    return 1 if total else 0


sys.exit(main())
