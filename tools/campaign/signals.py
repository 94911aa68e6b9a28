# SPDX-License-Identifier: Apache-2.0
"""Signals other than SIGKILL, to any process of a job, from the first instruction on: a request to stop is obeyed
with exit code 10 and a checkpoint, a pause is survived, a deadly signal is reported; no bit is lost by any."""
import os
import re
import signal
import time

from base import EXIT, Cast, moment_reached, random_layout, random_moment, send
from kills import check_finished

STOPS = (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
DEADLY = (signal.SIGQUIT, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM, signal.SIGABRT, signal.SIGSEGV, signal.SIGXFSZ)
IGNORABLE = (signal.SIGPIPE, signal.SIGXFSZ) # a command may ignore these and meet the error of the call instead
STATE = re.compile(rb"the state is in (\S+)")


def prepare(bench):
    del bench


def moment(x):
    """Half of them in the first 200 ms, where a job comes into being."""
    if x.rng.random() < 0.5:
        return ("time", x.rng.random() * 0.2)
    return random_moment(x.rng, x.bench.step_s)


def begin(x, *more):
    """A training, and its processes at a random moment; None: it ended before."""
    x.bench.equip(x)
    p = x.kumi("train", "config.json", "--out", "run", *random_layout(x.rng), *more)
    m = moment(x)
    x.title = f"{x.title} at {m[0]} {m[1]:.3g}: {' '.join(p.argv[5:])}"
    if moment_reached(p, f"{x.dir}/run", m):
        return p, Cast(p)
    x.judge(p, p.wait(), (0,))
    return p, None


def hit(x, pids, number):
    x.n_events += 1
    for pid in pids:
        send(pid, number)


def check_stopped(x, p, codes, *numbers):
    """10 with one line that names the state; death by the signal itself before anything had begun."""
    code = p.wait()
    if not x.judge(p, code, codes) or code != 10:
        return
    lines = p.lines(b"kumi: stopped: ")
    if len(lines) != 1 or p.errors() or not any(b"signal %d" % n in lines[0] for n in numbers):
        x.note(EXIT, f"signal {numbers}, exit 10: {len(lines)} lines of the stop, {len(p.errors())} errors: {p.tail()}")
    state = STATE.search(lines[0]) if lines else None
    if state:
        x.run("ckpt", "verify", state.group(1).decode())


def stop(x):
    number = x.rng.choice(STOPS)
    target = x.rng.choice(("launcher", "launcher", "launcher", "everything", "rank"))
    x.title = f"signal {number} to {target}"
    p, cast = begin(x)
    if cast is None:
        return
    has_begun = cast.has_children or os.path.isdir(f"{x.dir}/run")
    rank = x.rng.choice(sorted(cast.ranks)) if cast.ranks else None
    pids = {"launcher": [cast.launcher], "everything": cast.all(), "rank": [cast.ranks[rank]] if cast.ranks else [cast.launcher]}[target]
    hit(x, pids, number)
    codes = [10, 0]
    if not has_begun:
        codes.append(-number)
    if target == "rank" and cast.ranks: # one that does not heed it yet, or never, dies of it
        codes.append(6)
    check_stopped(x, p, codes, number)
    check_finished(x, "run")


def deadly(x):
    number = x.rng.choice(DEADLY)
    target = x.rng.choice(("launcher", "rank", "rank", "helper"))
    x.title = f"signal {number} to {target}"
    p, cast = begin(x)
    if cast is None:
        return
    pid = cast.launcher
    codes = [-number] + [0] * (number in IGNORABLE)
    if target == "rank" and cast.ranks:
        pid = x.rng.choice(list(cast.ranks.values()))
        codes = [6, 0]
    elif target == "helper" and cast.helper:
        pid, codes = cast.helper, [0, 6]
    hit(x, [pid], number)
    code = p.wait()
    if x.judge(p, code, codes) and code == 6 and b"rank died: rank " not in p.errors()[0]:
        x.note(EXIT, f"signal {number} to a rank: {p.tail()}")
    check_finished(x, "run")


def pause(x):
    target = x.rng.choice(("launcher", "rank", "ranks", "helper", "everything"))
    x.title = f"pause of {target}"
    p, cast = begin(x)
    if cast is None:
        return
    ranks = sorted(cast.ranks.values())
    pids = {"launcher": [cast.launcher], "everything": cast.all(), "rank": ranks[:1], "ranks": ranks,
            "helper": [cast.helper] if cast.helper else []}[target] or [cast.launcher]
    hit(x, pids, signal.SIGSTOP)
    time.sleep(x.rng.random() * 0.4)
    for pid in x.rng.sample(pids, len(pids)):
        send(pid, signal.SIGCONT)
    x.judge(p, p.wait(), (0,))
    check_finished(x, "run")


def stuck(x):
    """A rank that stays stopped: exit 7, with the collective in which the others wait."""
    x.title = "a rank stopped for good"
    x.bench.equip(x)
    p = x.kumi("train", "config.json", "--out", "run", "-n", x.rng.choice((2, 4)), "--set", f"parallel.timeout_s={max(2, x.bench.patience):.0f}")
    if not moment_reached(p, f"{x.dir}/run", ("lines", x.rng.randint(1, 40), x.rng.random() * 0.01)):
        return
    cast = Cast(p)
    if not cast.ranks:
        return
    hit(x, [x.rng.choice(list(cast.ranks.values()))], signal.SIGSTOP)
    code = p.wait()
    if x.judge(p, code, (7,)) and not re.search(rb"time-out: rank \d: no progress for [0-9.]+ s while rank \d waited in [a-z]\S+", p.errors()[0]):
        x.note(EXIT, f"time-out without a collective: {p.tail()}")
    check_finished(x, "run")


def twice(x):
    """Two signals within a second are one request; a second one later ends a job that cannot stop."""
    first, second = x.rng.choice(STOPS), x.rng.choice(STOPS)
    is_late = x.rng.random() < 0.4
    x.title = f"signals {first} and {second}, {'a second apart, a rank stopped' if is_late else 'at once'}"
    if not is_late:
        p, cast = begin(x)
        if cast is None:
            return
        has_begun = cast.has_children or os.path.isdir(f"{x.dir}/run")
        hit(x, [cast.launcher], first)
        time.sleep(x.rng.random() * 0.3)
        hit(x, [cast.launcher], second)
        check_stopped(x, p, [10, 0] + ([] if has_begun else [-first, -second]), first, second) # both pending: the lower is read first
        check_finished(x, "run")
        return
    x.bench.equip(x)
    p = x.kumi("train", "config.json", "--out", "run", "-n", x.rng.choice((2, 4)))
    if not moment_reached(p, f"{x.dir}/run", ("lines", x.rng.randint(1, 40), 0)):
        return
    cast = Cast(p)
    if not cast.ranks:
        return
    hit(x, [x.rng.choice(list(cast.ranks.values()))], signal.SIGSTOP)
    hit(x, [cast.launcher], first)
    time.sleep(3)  # the launcher counts a second from when it reads the first, late on a busy machine
    hit(x, [cast.launcher], second)
    code = p.wait()
    if x.judge(p, code, (128 + second,)) and b"a second signal" not in p.errors()[0]:
        x.note(EXIT, f"a second signal: {p.tail()}")
    check_finished(x, "run")


def one(x):
    x.rng.choice([stop] * 9 + [deadly] * 4 + [pause] * 3 + [stuck] + [twice] * 3)(x)
