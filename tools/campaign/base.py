# SPDX-License-Identifier: Apache-2.0
"""What all kinds of experiments share: processes that are found again by a mark in their environment, what may
go wrong with them, and the small trainings that they are done on."""
import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import time

LOSS, HANG, ORPHAN, EXIT, DIGEST, LITTER = "losses", "hangs", "orphans", "unexplained exits", "unequal", "litter"
FAULTS = (LOSS, HANG, ORPHAN, EXIT, DIGEST, LITTER)
DEADLINE_S = 60 # of any process: some hundred times what it takes
GONE_S = 2      # within which all processes of a job have ended after its first
MARK = "KUMI_CAMPAIGN"
STEPS = 60
CRASH = re.compile(rb"AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:|kumi: bug:|Assertion|stack smashing")
TAG = re.compile(rb"^\[\d+ [^\] ]+\] ") # of a rank's line, by `kumi run` on several hosts
SNAPSHOT = re.compile(r"step-\d{8,18}$")
# What a run may leave in its directory; .cut is what a resume from an older snapshot cut off.
OWN = re.compile(r"(lock|summary\.json|checkpoints(\.cut)?|weights|profile.*|.*\.vocab|metrics\.(cut\.)?jsonl)$")

CONFIG = {
    "model": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256},
    "data": {"train": "text"},
    "train": {"steps": STEPS, "global_batch": 8, "virtual_shards": 4, "eval_tokens": 128, "eval_every": 20, "log_every": 1,
              "ema": 0.9},
    "checkpoint": {"every": 5, "keep": 3},
}
PAIRS = {
    "model": {"model_type": "transformer", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "ffn_dim": 16,
              "max_positions": 16},
    "data": {"kind": "parallel", "train": "a.en", "train_target": "a.ja", "tokenizer": "word", "val_fraction": 0.1,
             "max_source_len": 12, "max_target_len": 12},
    "train": {"steps": 8, "global_batch": 4, "virtual_shards": 4, "eval_every": 0, "log_every": 1},
    "checkpoint": {"every": 4, "keep": 0},
}


def tree(path):
    """relative path -> SHA-256 of the bytes, "link" or "folder"."""
    found = {}
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            full = os.path.join(folder, name)
            key = os.path.relpath(full, path)
            if os.path.islink(full):
                found[key] = "link"
            elif os.path.isdir(full):
                found[key] = "folder"
            elif os.path.isfile(full):
                found[key] = hashlib.sha256(read(full)).hexdigest()
            else:
                found[key] = "special"
    return found


def read(path):
    """The bytes of a regular file; nothing of anything else, a FIFO among them."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def snapshots(run):
    """Names of the committed snapshots of a run, oldest first."""
    try:
        return sorted((n for n in os.listdir(f"{run}/checkpoints") if SNAPSHOT.match(n)), key=lambda n: int(n[5:]))
    except OSError:
        return []


def rows(text):
    """The lines of a metrics.jsonl; what is no JSON object is left out."""
    found = []
    for line in text.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


class Process:
    """A running command of an experiment."""

    def __init__(self, experiment, argv, env, cwd):
        self.experiment, self.argv, self.killed = experiment, argv, False
        number = len(experiment.commands)
        self.out_path, self.err_path = (f"{experiment.dir}/.{number}.{x}" for x in ("out", "err"))
        experiment.commands.append(" ".join(argv))
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd or experiment.dir, env=env,
                                          start_new_session=True)
        self.begin = time.monotonic()

    @property
    def pid(self):
        return self.popen.pid

    @property
    def out(self):
        return read(self.out_path)

    @property
    def err(self):
        return read(self.err_path).replace(b"\r", b"\n")

    def has_ended(self):
        return self.popen.poll() is not None

    def lines(self, begin):
        lines = (TAG.sub(b"", x) for x in self.err.split(b"\n"))
        return [x for x in lines if x.startswith(begin)]

    def errors(self):
        return self.lines(b"kumi: error:") + self.lines(b"kumi: bug:")

    def tail(self):
        lines = [x for x in self.err.decode("utf-8", "replace").split("\n") if x.strip() and not x.startswith("step ")]
        return " | ".join(x[:300] for x in lines[-3:]) or "silent"

    def wait(self, deadline_s=DEADLINE_S):
        """The exit code, below 0 a signal; None: a hang, which is noted, and the process is killed."""
        x = self.experiment
        try:
            code = self.popen.wait(deadline_s * x.bench.patience)
            x.code = code if x.code is None and x.fault_s else x.code
            return code
        except subprocess.TimeoutExpired:
            where = "; ".join(f"{p}: {read(f'/proc/{p}/wchan').decode()}" for p in x.processes())
            x.note(HANG, f"{deadline_s * x.bench.patience:.0f} s: {self.shown()} ({where}): {self.tail()}")
            x.kill_all()
            self.popen.wait()
            return None

    def shown(self):
        return " ".join(self.argv).replace(self.experiment.dir + "/", "")[:300]


class Experiment:
    def __init__(self, bench, kind, index):
        self.bench, self.kind, self.index = bench, kind, index
        self.name = f"{kind}:{index}"
        self.rng = random.Random(f"{bench.seed}:{kind}:{index}")
        self.dir = f"{bench.dir}/{kind}-{index}"
        self.findings, self.commands, self.n_events, self.title = [], [], 0, ""
        # Of a job on several hosts: what is done over which transport, when, its exit code, and the seconds until its last process was gone
        self.group, self.fault_s, self.code, self.gone_s = None, None, None, None
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)

    def note(self, fault, text):
        self.findings.append((fault, text.replace(self.dir + "/", "")))

    def environment(self, more=None):
        env = {k: v for k, v in os.environ.items() if not re.match(r"KUMI_|RANK$|WORLD_SIZE$|LOCAL_|OMPI_|SLURM_|PMI", k)}
        env |= {MARK: self.dir, "KUMI_CACHE": f"{self.bench.dir}/cache"}
        return env | (more or {})

    def harmed(self):
        self.n_events += 1
        self.fault_s = time.monotonic()

    def is_gone(self):
        """Whether no process is left."""
        if self.processes():
            return False
        if self.fault_s and self.gone_s is None:
            self.gone_s = time.monotonic() - self.fault_s
        return True

    def start(self, *argv, env=None, cwd=None):
        return Process(self, [str(a) for a in argv], self.environment(env), cwd)

    def kumi(self, *argv, env=None, cwd=None):
        return self.start(self.bench.kumi, *argv, env=env, cwd=cwd)

    def run(self, *argv, codes=(0,), env=None, deadline_s=DEADLINE_S):
        """A kumi command to its end, which is among `codes`."""
        p = self.kumi(*argv, env=env)
        p.code = p.wait(deadline_s)
        self.judge(p, p.code, codes)
        return p

    def processes(self):
        """Every live process that descends from a command of this experiment: pid -> environment."""
        mark, found = f"{MARK}={self.dir}\0".encode(), {}
        for pid in os.listdir("/proc"):
            if not pid.isdigit():
                continue
            environment = read(f"/proc/{pid}/environ")
            if mark in environment + b"\0" and b") Z " not in read(f"/proc/{pid}/stat"):
                found[int(pid)] = environment
        return found

    def kill_all(self):
        for pid in self.processes():
            send(pid, signal.SIGKILL)

    def no_orphans(self, p):
        """Soon after a job's end none of its processes is left."""
        end = time.monotonic() + GONE_S * self.bench.patience
        while not self.is_gone():
            if time.monotonic() > end:
                left = ", ".join(f"{q} {role_of(q, e, p.pid)}" for q, e in self.processes().items())
                self.note(ORPHAN, f"{left} after {p.shown()}")
                self.kill_all()
                return
            time.sleep(0.01)

    def judge(self, p, code, codes):
        """One error line for an error, none for success, no crash, no other code."""
        if code is None:
            return False
        errors = p.errors()
        if CRASH.search(p.err):
            self.note(EXIT, f"crash: exit {code}: {p.shown()}: {CRASH.search(p.err).group().decode()}: {p.tail()}")
        elif code not in codes:
            self.note(EXIT, f"exit {code}, expected {' or '.join(map(str, codes))}: {p.shown()}: {p.tail()}")
        elif code > 0 and code != 10 and len(errors) != 1:
            self.note(EXIT, f"exit {code} with {len(errors)} error lines: {p.shown()}: {p.tail()}")
        elif code == 0 and errors:
            self.note(EXIT, f"exit 0 with an error line: {p.shown()}: {p.tail()}")
        else:
            self.no_orphans(p)
            return True
        self.no_orphans(p)
        return False

    def digest(self, run):
        p = self.run("ckpt", "digest", run)
        return p.out.decode().strip() if p.code == 0 else None

    def check_litter(self, run):
        names = [n for n in os.listdir(run) if not OWN.match(n)] if os.path.isdir(run) else []
        names += [f"checkpoints/{n}" for n in os.listdir(f"{run}/checkpoints") if not SNAPSHOT.match(n)] if os.path.isdir(f"{run}/checkpoints") else []
        if names:
            self.note(LITTER, f"{run.replace(self.dir + '/', '')}: left: {', '.join(sorted(names))}")

    def check_metrics(self, run, steps, eval_every, more=()):
        """Each step stands once, in order; each evaluation once."""
        found = rows(read(f"{run}/metrics.jsonl"))
        loss = [r.get("step") for r in found if "loss" in r]
        val = [r.get("step") for r in found if "val_loss" in r and r.get("step") not in more]
        wanted = sorted({s for s in range(1, steps + 1) if s % eval_every == 0} | {steps})
        if loss != list(range(1, steps + 1)):
            self.note(LOSS, f"metrics.jsonl: steps {brief(loss)}; 1 to {steps} once each were expected")
        if val != wanted:
            self.note(LOSS, f"metrics.jsonl: evaluations at {brief(val)}; expected at {brief(wanted)}")


def brief(numbers):
    """1-5 9 9 12-14"""
    parts = []
    for n in numbers:
        if parts and isinstance(n, int) and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts[:12]) + (" .." if len(parts) > 12 else "")


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def parent_of(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def role_of(pid, environment, launcher):
    match = re.search(rb"(?:^|\0)KUMI_RANK=(\d+)", environment)
    if pid == launcher:
        return "launcher"
    return f"rank {match.group(1).decode()}" if match else "helper"


class Cast:
    """The processes of a running job by role."""

    def __init__(self, p):
        self.launcher, self.ranks, self.helper = p.pid, {}, None
        helpers = []
        for pid, environment in p.experiment.processes().items():
            role = role_of(pid, environment, p.pid)
            if role.startswith("rank"):
                self.ranks[int(role[5:])] = pid
            elif role == "helper" and parent_of(pid) == p.pid:
                helpers.append(pid)
        self.helper = min(helpers) if helpers else None
        self.has_children = bool(helpers or self.ranks)

    def all(self):
        return [self.launcher, *([self.helper] if self.helper else []), *self.ranks.values()]


class Bench:
    """The build under test, a scratch folder, and what each experiment compares with."""

    def __init__(self, build, folder, seed, patience):
        self.kumi = os.path.abspath(build if os.path.isfile(build) else f"{build}/kumi")
        self.source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self.dir, self.seed = os.path.abspath(folder), seed
        self.is_sanitized = b"__asan_init" in read(self.kumi) or b"__tsan_init" in read(self.kumi)
        self.patience = patience * (10 if self.is_sanitized else 1)
        self.home = f"{self.dir}/home"

    def prepare(self):
        """The data, the uninterrupted runs and their figures."""
        x = Experiment(self, "home", 0)
        self.home = x.dir
        text = read(f"{self.source}/data/tinyshakespeare.txt")[:30000]
        self.write("text", text)
        self.write("config.json", json.dumps(CONFIG).encode())
        self.write("pairs.json", json.dumps(PAIRS).encode())
        r = random.Random(1)
        pairs = [[" ".join(r.choice("abcdefgh") * 2 for _ in range(r.randint(2, 7))) for _ in range(2)] for _ in range(60)]
        self.write("a.en", "".join(a + "\n" for a, _ in pairs).encode())
        self.write("a.ja", "".join(b.upper() + "\n" for _, b in pairs).encode())
        whole = x.run("train", "config.json", "--out", "whole")
        self.whole_digest = x.digest("whole")
        if x.findings:
            raise SystemExit(f"campaign: the uninterrupted run failed: {x.findings[0][1]}")
        self.step_s = max(0.2, time.monotonic() - whole.begin)
        return self

    def write(self, name, data):
        with open(f"{self.home}/{name}", "wb") as f:
            f.write(data)

    def equip(self, x, *names):
        """The data of trainings in an experiment's folder."""
        for name in names or ("text", "config.json"):
            os.symlink(f"{self.home}/{name}", f"{x.dir}/{name}")


def moment_reached(p, run, moment):
    """Wait for it: ("time", s), ("lines", n, s), ("writing", n, s) while the n-th snapshot is written. False: the process ended before."""
    what, value = moment[0], moment[1]
    if what == "time":
        time.sleep(value)
        return not p.has_ended()
    while not p.has_ended():
        if what == "lines" and read(f"{run}/metrics.jsonl").count(b'"loss"') >= value:
            break
        if what == "writing":
            try:
                names = os.listdir(f"{run}/checkpoints")
            except OSError:
                names = []
            if any(n.startswith(".tmp-") for n in names) and len(names) >= value:
                break
        time.sleep(0.0005)
    time.sleep(moment[2])
    return not p.has_ended()


def random_moment(rng, early_s):
    kind = rng.choice(("time", "lines", "lines", "writing", "tail"))
    if kind == "time":
        return ("time", rng.random() * early_s)
    if kind == "lines":
        return ("lines", rng.randint(1, STEPS - 4), rng.random() * 0.01)
    if kind == "writing":
        return ("writing", rng.randint(1, 3), rng.random() * 0.004)
    return ("lines", STEPS, rng.random() * 0.05)


def random_layout(rng):
    """Arguments of a training: any of these lead to the same bits."""
    n = rng.choice((1, 2, 2, 4))
    options = [
        [], [], ["parallel.zero=1"], ["parallel.zero=2"], ["parallel.zero=3"], ["parallel.host_state=private"],
        ["parallel.transport=thread"], ["parallel.transport=thread", "parallel.zero=2"],
        ['memory.offload={"optimizer":"host"}'], ['memory.offload={"optimizer":"file","path":"."}'], ['memory.recompute="full"'],
    ]
    sets = rng.choice(options) + rng.choice(([], ["train.threads=2"])) + rng.choice(([], ["checkpoint.async=true"]))
    sets = sets + [f"checkpoint.every={rng.choice((1, 2, 3, 5, 7, 20))}", f"checkpoint.keep={rng.choice((1, 2, 3))}"]
    argv = ["-n", n]
    for s in sets:
        argv += ["--set", s]
    return argv
