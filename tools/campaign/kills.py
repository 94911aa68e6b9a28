# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a job's processes at any moment: afterwards the newest committed snapshot is there, and the run ends,
resumed at other layouts, with the bits, the metrics and the files of the uninterrupted one."""
import os
import shutil
import signal
import time

from base import (CONFIG, DIGEST, EXIT, LITTER, LOSS, STEPS, Cast, Experiment, moment_reached, random_layout, random_moment, read, send, snapshots, tree)

EVAL_EVERY = CONFIG["train"]["eval_every"]


def pick_target(rng, p):
    """(name, pids) among the live processes of a job."""
    cast = Cast(p)
    choices = [("launcher", [cast.launcher])]
    if cast.ranks:
        r = rng.choice(sorted(cast.ranks))
        everything = cast.all()
        rng.shuffle(everything)
        choices += [(f"rank {r}", [cast.ranks[r]])] * 2 + [("all ranks", sorted(cast.ranks.values())), ("everything", everything)]
    if cast.helper:
        choices.append(("helper", [cast.helper]))
    return cast, rng.choice(choices)


def check_end(x, p, target, cast):
    """How the job of a killed process ends."""
    code = p.wait()
    if code is None:
        return
    if target == "launcher":
        x.judge(p, code, (-signal.SIGKILL, 0))
    elif target == "everything": # a rank may have gone first
        x.judge(p, code, (-signal.SIGKILL, 0, 6))
    elif target == "helper":
        x.judge(p, code, (0, 6))
    elif x.judge(p, code, (6, 0)) and code == 6 and b"rank died: rank " not in p.errors()[0]:
        x.note(EXIT, f"{target} killed: {p.tail()}")


def check_resumed(x, p, newest):
    """A resumed job says which snapshot it took: the newest that was committed."""
    said = p.lines(b"kumi: resumed ")
    if said and newest and newest.encode() not in said[0]:
        x.note(LOSS, f"{newest} was committed; {said[0].decode()}")
    if newest and p.lines(b"kumi: ") and b"starting a new run" in p.err:
        x.note(LOSS, f"{newest} was committed; the run started afresh")


def check_finished(x, run, more_evaluations=()):
    """After all kills: one more resume ends the run as if nothing had happened."""
    newest = (snapshots(f"{x.dir}/{run}") or [None])[-1]
    p = x.run("train", "config.json", "--out", run, "--resume=auto", *random_layout(x.rng))
    check_resumed(x, p, newest)
    if p.code != 0:
        return
    if x.digest(run) != x.bench.whole_digest:
        x.note(DIGEST, f"{x.digest(run)} instead of {x.bench.whole_digest}")
    x.check_metrics(f"{x.dir}/{run}", STEPS, EVAL_EVERY, more_evaluations)
    x.run("ckpt", "verify", run)
    if newest != f"step-{STEPS:08}": # what is complete is left as it is
        x.check_litter(f"{x.dir}/{run}")
    if not os.path.exists(f"{x.dir}/{run}/summary.json"):
        x.note(LOSS, "summary.json is missing after the run's end")


def killed_once(x, argv, moment):
    """False: it ended before it could be killed."""
    run = f"{x.dir}/run"
    p = x.kumi(*argv)
    if not moment_reached(p, run, moment):
        x.judge(p, p.wait(), (0,))
        return p, False
    cast, (target, pids) = pick_target(x.rng, p)
    before = (snapshots(run) or [None])[-1]
    for pid in pids:
        send(pid, signal.SIGKILL)
    x.n_events += 1
    x.title += f"; {target} at {moment[0]} {moment[1]:.3g}"
    check_end(x, p, target, cast)
    x.no_orphans(p)
    after = (snapshots(run) or [None])[-1]
    if before and (after is None or int(after[5:]) < int(before[5:])) and "--overwrite" not in argv:
        x.note(LOSS, f"{before} was committed; after {target} was killed the newest is {after}")
    return p, True


def training(x):
    x.bench.equip(x)
    x.title = "training"
    newest = None
    for _ in range(x.rng.randint(1, 3)):
        argv = ["train", "config.json", "--out", "run", "--resume=auto", *random_layout(x.rng)]
        p, was_killed = killed_once(x, argv, random_moment(x.rng, x.bench.step_s))
        check_resumed(x, p, newest)
        newest = (snapshots(f"{x.dir}/run") or [None])[-1]
        if not was_killed:
            break
    check_finished(x, "run")


def overwriting(x):
    """A run of 10 steps is replaced: until the new one's first step the old one is there."""
    x.bench.equip(x)
    x.title = "overwriting"
    run = f"{x.dir}/run"
    x.run("train", "config.json", "--out", "run", "--until", 10)
    moment = x.rng.choice((("time", x.rng.random() * x.bench.step_s * 0.6), ("lines", 1, 0.01 * x.rng.random())))
    _, was_killed = killed_once(x, ["train", "config.json", "--out", "run", "--overwrite", *random_layout(x.rng)], moment)
    old = any(f.endswith("step-00000010") for f, _, _ in os.walk(x.dir)) # in its place, or aside
    if was_killed and not old and not snapshots(run) and not read(f"{run}/metrics.jsonl"):
        x.note(LOSS, "--overwrite, killed before the first step of the new run: the old one is deleted")
    if x.rng.random() < 0.5:
        check_finished(x, "run", (10,)) # the end of the old run, if that is what is continued
    else:
        x.run("train", "config.json", "--out", "run", "--overwrite", *random_layout(x.rng))
        check_finished(x, "run")


def weights(x, command):
    """An export or import that is killed leaves nothing or a whole folder, and nothing that blocks the next."""
    x.title = command
    source = x.bench.fat_run if command == "export" else x.bench.fat_export
    for _ in range(x.rng.randint(1, 2)):
        p = x.kumi("ckpt", command, source, "--to", "to")
        delay = x.rng.random() * 0.02
        while not p.has_ended() and not any("to" in n for n in os.listdir(x.dir)):
            time.sleep(0.0002)
        time.sleep(delay)
        send(p.pid, signal.SIGKILL)
        code = p.wait()
        x.n_events += code == -signal.SIGKILL
        x.judge(p, code, (-signal.SIGKILL, 0))
        if os.path.exists(f"{x.dir}/to"):
            if tree(f"{x.dir}/to") != x.bench.fat_tree:
                x.note(LOSS, f"{command}: a folder that is not whole has the final name")
            shutil.rmtree(f"{x.dir}/to")
    p = x.run("ckpt", command, source, "--to", "to")
    if p.code == 0 and tree(f"{x.dir}/to") != x.bench.fat_tree:
        x.note(DIGEST, f"{command}: other files than those of an uninterrupted one")
    left = [n for n in os.listdir(x.dir) if n[0] != "." and n != "to"] + [n for n in os.listdir(x.dir) if "to" in n and n[0] == "."]
    if left and p.code == 0:
        x.note(LITTER, f"{command}: left: {', '.join(left)}")


def prepare(bench):
    """A run whose weights, 17 MB, take some time to write."""
    x = Experiment(bench, "fat", 0)
    bench.equip(x)
    wide = ["model.n_embd=512", "model.n_positions=64", "train.steps=1", "train.virtual_shards=1", "train.global_batch=1", "train.eval_tokens=64",
            "train.ema=0", "model.n_layer=1"]
    x.run("train", "config.json", "--out", "run", *[a for s in wide for a in ("--set", s)])
    x.run("ckpt", "export", "run", "--to", "export")
    bench.fat_run, bench.fat_export, bench.fat_tree = f"{x.dir}/run", f"{x.dir}/export", tree(f"{x.dir}/export")
    x.run("ckpt", "import", "export", "--to", "import")
    if tree(f"{x.dir}/import") != bench.fat_tree or x.findings:
        raise SystemExit(f"campaign: export and import differ, or failed: {x.findings}")


def one(x):
    draw = x.rng.random()
    if draw < 0.7:
        training(x)
    elif draw < 0.85:
        overwriting(x)
    else:
        weights(x, "export" if draw < 0.93 else "import")
