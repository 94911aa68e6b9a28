#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kill servers and workers of kumi ps run at seeded moments, also both at once: the digest is that of an undisturbed run.

    ps_kills.py KUMI N SEED [MODE..]

In mode sync the digest is that of an all-reduce run, in modes int8 and topk (ps.compression) that of kumi train with as
many workers, as in mode call, where a server kills itself in place of its n-th
system call. In the other modes the journal is replayed: the digest is that of the replay, so no acknowledged update
was lost and none was applied twice. A journal that lost its end would replay as well: the servers that are started again
have the updates that `kumi ps status` showed before the kill.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

STEPS = 80


def configure(folder):
    r = random.Random(1)
    with open(f"{folder}/t.txt", "w") as f:
        f.write("".join(r.choice("abcdefgh ") for _ in range(20000)))
    model = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
    config = {"model": model, "data": {"train": f"{folder}/t.txt", "seq_len": 16},
              "train": {"steps": STEPS, "global_batch": 16, "micro_batch": 2, "virtual_shards": 4, "threads": 1},
              "checkpoint": {"every": 7, "keep": 2}, "parallel": {"timeout_s": 120}}
    with open(f"{folder}/c.json", "w") as f:
        json.dump(config, f)


def digest(text):
    found = re.search(r"^digest: (\S+)$", text, re.M)
    return found.group(1) if found else None


def children(pid):
    """All descendants of a process, with their command lines; none of one that has ended."""
    found = []
    try:
        alive = open(f"/proc/{pid}/task/{pid}/children").read().split()
    except OSError:
        return found
    for child in alive:
        try:
            line = open(f"/proc/{child}/cmdline").read().split("\0")
            found += [(int(child), line), *children(child)]
        except OSError:
            pass
    return found


def kill_some(run, what, r):
    """Kill a process of each kind; servers are the leaves below their launcher. Returns the number of kills."""
    alive, kills = children(run.pid), 0
    for pids in [[pid for pid, line in alive if len(line) > 1 and line[1] == kind] for kind in what]:
        if pids:
            try:
                os.kill(r.choice(pids), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
    return kills


def shown(kumi, out):
    """The updates that server 0 reports, and the length of the run's log then; None: it does not answer."""
    done = subprocess.run([f"{kumi}-ps", "status", "--json", "--servers", f"unix:{out}/server-0.sock"], capture_output=True, text=True)
    return (json.loads(done.stdout)["updates"], os.path.getsize(f"{out}.err")) if done.returncode == 0 else None


def await_updates(run, kumi, out, n):
    """What is shown once there are n updates, or after a second."""
    end, now = time.monotonic() + 1, shown(kumi, out)
    while (now is None or now[0] < n) and time.monotonic() < end and run.poll() is None:
        now = shown(kumi, out) or now
    return now


def recovered(log):
    """The update with which servers that were started again begin."""
    update, is_open = 0, False
    for line in log.splitlines():
        found = re.search("repeating updates [0-9]+ to ([0-9]+) from the journal|resumed .* at step ([0-9]+)$", line)
        if found:
            update = max(update, int(found.group(1) or found.group(2)))
        is_open |= line.startswith("kumi: gpt2: ")
        if is_open and line.startswith("step "):
            break
    return update


assert recovered("kumi: r: repeating updates 8 to 9 from the journal\nkumi: gpt2: 1\nkumi: resumed r at step 7\nstep 8/9\nkumi: resumed r at step 9") == 9
assert recovered("step 3/9\nkumi: gpt2: 1\nkumi: resumed r at step 7\nstep 8/9\nkumi: r: repeating updates 8 to 9 from the journal") == 7


def has_begun(out):
    try:
        return os.path.getsize(f"{out}/journal/server-0/00000001.journal") > 0
    except OSError:
        return os.path.exists(f"{out}/journal/server-0")


COMPRESSED = ("int8", "topk")
COMPARED = []  # updates that were shown before a kill, and those after the restart


def in_process(kumi, folder, n, mode, known={}):
    """The digest of an undisturbed run with n workers and compressed pushes."""
    if (n, mode) not in known:
        done = subprocess.run([kumi, "train", f"{folder}/c.json", "--out", f"{folder}/{mode}-{n}", "--set",
                               f"ps.workers={n}", "--set", f"ps.compression={mode}"], capture_output=True, text=True)
        known[n, mode] = digest(done.stdout) or done.stderr
    return known[n, mode]


def one(kumi, folder, seed, mode, want):
    """Returns the number of kills; prints and returns -1 if the digests differ."""
    r = random.Random(seed)
    out, n, s = f"{folder}/run-{seed}", r.choice([1, 2, 3 if mode not in ("sync", *COMPRESSED) else 2]), r.choice([1, 2, 3])
    line = [f"{kumi}-ps", "run", f"{folder}/c.json", "-n", str(n), "-s", str(s), "--out", out, "--keep-journal",
            "--restarts", "20", "--worker-restarts", "20", "--journal-sync", r.choice(["none", "every", "group:2"])]
    if n == 3:
        line += ["--set", "train.virtual_shards=3", "--set", "train.global_batch=12"]
    if mode == "backup":
        line += ["--set", "ps.backup=1" if n > 1 else "ps.backup=0"]
    elif mode in COMPRESSED:
        line += ["--set", f"ps.compression={mode}"]
        want = in_process(kumi, folder, n, mode)
    elif mode != "sync":
        line += ["--set", f"ps.mode={mode}"]
    with open(f"{out}.out", "w") as o, open(f"{out}.err", "w") as e:
        run = subprocess.Popen(line, stdout=o, stderr=e)
        kills, seen = 0, []
        while not has_begun(out) and run.poll() is None:
            time.sleep(0.002)
        for _ in range(r.randint(1, 3)):
            time.sleep(r.random() ** 2 * 0.25)
            if run.poll() is None:
                what = r.choice([["serve"], ["worker"], ["serve", "worker"]])
                if "serve" in what:
                    seen.append(await_updates(run, kumi, out, r.choice([0, r.randrange(STEPS)])))
                kills += kill_some(run, what, r)
        try:
            code = run.wait(timeout=240)
        except subprocess.TimeoutExpired:
            run.terminate()
            code = "no end"
    got = digest(open(f"{out}.out").read())
    if mode not in ("sync", *COMPRESSED):
        again = subprocess.run([f"{kumi}-ps", "replay", out], capture_output=True, text=True, timeout=240)
        want = digest(again.stdout) or again.stderr
    log = open(f"{out}.err").read()
    again = [(update, recovered(log[begin:])) for update, begin in filter(None, seen) if "the servers are started again" in log[begin:]]
    lost = [(before, after) for before, after in again if after < before]
    COMPARED.extend(again)
    if code == 0 and got and got == want and not lost:
        return kills
    print(*(f"seed {seed}: update {before} was shown, and the servers began again with update {after}" for before, after in lost), sep="\n")
    print(f"seed {seed}, mode {mode}, {n} workers, {s} servers, {kills} kills: exit {code}, {got}, wanted {want}")
    print(log[-3000:])
    return -1


def one_call(kumi, folder, seed, want):
    """A server that kills itself in place of a system call, and is started again; as one()."""
    r = random.Random(seed)
    out, set_ = f"{folder}/run-{seed}", ["--set", "ps.workers=1"]
    serve = [f"{kumi}-ps", "serve", f"{folder}/c.json", "--out", out, *set_]
    worker = subprocess.Popen([f"{kumi}-ps", "worker", f"{folder}/c.json", "--servers", f"unix:{out}/server-0.sock",
                               *set_], stderr=subprocess.DEVNULL)
    kills = 0
    for _ in range(3):
        fault = {"KUMI_FAULT": f"kill:{r.randint(1, 900)}"} if kills < 2 else {}
        done = subprocess.run(serve, capture_output=True, text=True, timeout=240, env=os.environ | fault)
        if done.returncode != -signal.SIGKILL:
            break
        kills += 1
    code, got = worker.wait(timeout=240), digest(done.stdout)
    if code == 0 and done.returncode == 0 and got == want:
        return kills
    print(f"seed {seed}, mode call, {kills} kills: exit {done.returncode}, worker {code}, {got}, wanted {want}")
    print(done.stderr[-3000:])
    return -1


def main():
    kumi, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    modes = sys.argv[4:] or ["sync", "call", "async", "ssp", "backup", *COMPRESSED]
    failed = kills = 0
    with tempfile.TemporaryDirectory() as folder:
        configure(folder)
        whole = subprocess.run([kumi, "train", f"{folder}/c.json", "--out", f"{folder}/whole"], capture_output=True,
                               text=True)
        want, i = digest(whole.stdout), 0
        while kills < n and not failed:
            mode = modes[i % len(modes)]
            done = one_call(kumi, folder, seed + i, want) if mode == "call" else one(kumi, folder, seed + i, mode, want)
            failed |= done < 0
            kills += max(done, 0)
            i += 1
    print(f"{kills} kills in {i} runs; {len(COMPARED)} restarts compared with what was shown before, after {sum(x for x, _ in COMPARED)} updates")
    return failed


if __name__ == "__main__":
    sys.exit(main())
