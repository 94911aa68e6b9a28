# SPDX-License-Identifier: Apache-2.0
"""Faults of jobs on several hosts, which this machine pretends to be, over TCP and both makes of MPI: a rank, the first rank of a host
or the launcher is killed, a rank is stopped, strangers talk to the ports. Under kumi's launcher the documented exit code and one line
that names the rank; of MPI's launchers, whose codes are their own, an end. Nothing is left, and the resumed run has the same bits."""
import os
import re
import shutil
import signal
import socket
import time

from base import EXIT, ORPHAN, STEPS, moment_reached, read, send
from kills import check_finished

LAYOUTS = ([1, 1], [2, 2], [2, 2], [1, 3], [3, 1], [1, 1, 1, 1], [2, 1, 1])
MPI_GONE_S = 15 # Open MPI waits for two seconds twice; a stopped rank is killed after that
MAKES = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl",
                "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", "1"],
    "mpich": ["mpiexec.hydra"],
}
# A rank of MPI learns which host it pretends to be on from the sizes of the hosts.
PLACE = """
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} first=0 host=0
for n in $SIZES; do
    [ $rank -ge $((first + n)) ] || break
    first=$((first + n)) host=$((host + 1))
done
make=OMPI_COMM_WORLD_LOCAL_RANK=$((rank - first))" "OMPI_COMM_WORLD_LOCAL_SIZE=$n
[ -n "${OMPI_COMM_WORLD_RANK:-}" ] || make=MPI_LOCALRANKID=$((rank - first))" "MPI_LOCALNRANKS=$n
export KUMI_HOST=h$host $make
exec "$@"
"""
RANK = re.compile(rb"(?:^|\0)(?:KUMI_RANK|OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)")


def makes_there(bench):
    return [m for m in ("openmpi", "mpich") if os.path.exists(f"{os.path.dirname(bench.kumi)}/libkumi-mpi-{m}.so") and shutil.which(MAKES[m][0])]


def prepare(bench):
    bench.launchers = ["train", "train", "run", *makes_there(bench)]


class Job:
    """A training on several hosts."""

    def __init__(self, x, *more, launchers=None):
        self.x, self.sizes = x, x.rng.choice(LAYOUTS)
        self.launcher, n = x.rng.choice(launchers or x.bench.launchers), sum(self.sizes)
        x.bench.equip(x)
        train = ["train", "config.json", "--out", "run", "--set", f"parallel.zero={x.rng.randrange(4)}", *more]
        hosts = ["-H", ",".join(f"h{i}:{size}" for i, size in enumerate(self.sizes)), "--rsh", "none"]
        env = {"KUMI_PLUGINS": os.path.dirname(x.bench.kumi), "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "SIZES": " ".join(map(str, self.sizes))}
        if self.launcher == "train":
            self.p = x.kumi(*train, *hosts, env=env)
        elif self.launcher == "run":
            self.p = x.kumi("run", *hosts, "--", x.bench.kumi, *train, env=env)
        else:
            self.p = x.start(*MAKES[self.launcher], "-n", n, "sh", "-c", PLACE, "sh", x.bench.kumi, *train, env=env)
        x.group = (x.title, self.launcher if self.is_mpi else "tcp")
        x.title += f", {self.launcher} {'+'.join(map(str, self.sizes))}"

    @property
    def is_mpi(self):
        return self.launcher in MAKES

    def reach(self):
        """rank -> process at a random moment; empty: the run has ended."""
        run, rng = f"{self.x.dir}/run", self.x.rng
        if not moment_reached(self.p, run, ("lines", 1, 0)): # looking for processes takes as long as many steps
            return {}
        found = self.ranks()
        return found if moment_reached(self.p, run, ("lines", rng.randint(1, STEPS - 10), rng.random() * 0.01)) else {}

    def ranks(self):
        found = {}
        for pid, environment in self.x.processes().items():
            match, argv = RANK.search(environment), read(f"/proc/{pid}/cmdline").split(b"\0")
            if match and argv[1:2] == [b"train"]:
                found[int(match.group(1))] = pid
        return found

    def firsts(self):
        return [sum(self.sizes[:i]) for i in range(len(self.sizes))]

    def host_of(self, rank):
        return max(i for i, first in enumerate(self.firsts()) if first <= rank)

    def end(self, codes, words=None):
        """Its exit code is one of these, and its error line has these words."""
        x, code = self.x, self.p.wait()
        if code is None:
            return
        if not self.is_mpi:
            if x.judge(self.p, code, codes) and code in (6, 7) and words and not re.search(words, self.p.errors()[0]):
                x.note(EXIT, f"no {words.decode()} in: {self.p.tail()}")
            return
        said = self.p.errors()
        if codes == (0,) and code:
            x.note(EXIT, f"exit {code} of {self.launcher}: {self.p.tail()}")
        if said and words and not any(re.search(words, line) for line in said):
            x.note(EXIT, f"no {words.decode()} in: {said[0].decode()}")
        end = time.monotonic() + MPI_GONE_S * x.bench.patience
        while not x.is_gone():
            if time.monotonic() > end:
                x.note(ORPHAN, f"{len(x.processes())} processes after {self.launcher}")
                x.kill_all()
            time.sleep(0.02)


def finish(x):
    left = [n for n in os.listdir("/dev/shm") if n.startswith("kumi")]
    if left:
        x.note("litter", f"/dev/shm: {left}")
    check_finished(x, "run")


def kill_rank(x, is_first):
    x.title = "the first rank of a host killed" if is_first else "a rank killed"
    job = Job(x)
    ranks = job.reach()
    choices = sorted(set(ranks) & set(job.firsts()) if is_first else ranks)
    if not choices:
        job.end((0,))
        return finish(x)
    rank = x.rng.choice(choices)
    x.title += f", rank {rank}"
    x.harmed()
    send(ranks[rank], signal.SIGKILL)
    job.end((6, 0), rb"rank died: rank %d on host h%d: " % (rank, job.host_of(rank)))
    return finish(x)


def kill_launcher(x):
    x.title = "the launcher killed"
    job = Job(x)
    if x.rng.random() < 0.5:
        job.reach()
    else:
        time.sleep(x.rng.random() * 0.3)
    x.harmed()
    send(job.p.pid, signal.SIGKILL)
    code = job.p.wait()
    if job.is_mpi: # what it has started ends by itself, or by its daemons
        job.launcher = f"a killed {job.launcher}"
        MAKES[job.launcher] = []
        job.end((-signal.SIGKILL,))
    else:
        x.judge(job.p, code, (-signal.SIGKILL, 0))
    finish(x)


def stop_rank(x):
    """For good, or for less than the time-out, which nothing notices."""
    is_short = x.rng.random() < 0.5
    x.title = "a rank stopped for a moment" if is_short else "a rank stopped"
    job = Job(x, *(() if is_short else ("--set", f"parallel.timeout_s={max(2, x.bench.patience):.0f}")))
    ranks = job.reach()
    if not ranks:
        job.end((0,))
        return finish(x)
    rank = x.rng.choice(sorted(ranks))
    x.title += f", rank {rank}"
    x.harmed()
    send(ranks[rank], signal.SIGSTOP)
    if is_short:
        time.sleep(x.rng.random() * 1.5)
        send(ranks[rank], signal.SIGCONT)
        job.end((0,))
    else:
        job.end((7, 0), rb"time-out: rank %d(?: on host h%d)?: no progress" % (rank, job.host_of(rank)))
    return finish(x)


def ports_of(pids):
    """TCP ports on which these processes listen."""
    sockets = set()
    for pid in pids:
        try:
            names = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        sockets |= {n[8:-1] for n in names if n.startswith("socket:[")}
    found = []
    for line in (read("/proc/net/tcp") + read("/proc/net/tcp6")).decode().split("\n"):
        words = line.split()
        if len(words) > 9 and words[3] == "0A" and words[9] in sockets:
            found.append(int(words[1].split(":")[1], 16))
    return sorted(set(found))


def strangers(x):
    x.title = "strangers"
    job, open_ones = Job(x, launchers=("train", "run")), [] # MPI's own ports are not ours
    while not job.p.has_ended() and len(open_ones) < 200:
        for port in ports_of(job.ranks().values()):
            data = x.rng.choice((b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(x.rng.randint(1, 5000)), b"\0" * 128))
            try:
                s = socket.create_connection(("127.0.0.1", port), 1)
                s.setblocking(False)
                s.send(data)
                open_ones.append(s) # half of them stay
                if x.rng.random() < 0.5:
                    open_ones.pop().close()
                x.harmed()
            except OSError:
                pass
        time.sleep(0.01)
    job.end((0,))
    for s in open_ones:
        s.close()
    finish(x)


def one(x):
    event = x.rng.choice(["rank"] * 3 + ["first"] * 3 + ["launcher"] * 2 + ["stop"] * 2 + ["strangers"] * 2)
    {"rank": lambda: kill_rank(x, False), "first": lambda: kill_rank(x, True), "launcher": lambda: kill_launcher(x),
     "stop": lambda: stop_rank(x), "strangers": lambda: strangers(x)}[event]()
