# SPDX-License-Identifier: Apache-2.0
"""Two hosts in network namespaces (tests/hosts/hosts.sh) whose link goes down: for 3 s, which a job survives, or for good, which ends it
with exit code 6 or 7 about 10 s later, on both sides. No experiment where the system makes no namespaces."""
import os
import subprocess
import time

from base import EXIT, HANG, STEPS, moment_reached
from kills import check_finished

SILENCE_S = 11 # in which the kernel gives a connection up


def prepare(bench):
    bench.tool = f"{bench.source}/tests/hosts/hosts.sh"
    bench.has_links = subprocess.run(["bash", bench.tool, "with", "1", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     check=False).returncode == 0


class Hosts:
    def __init__(self, bench):
        self.tool = bench.tool
        self.name = subprocess.run(["bash", self.tool, "up", "2"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call("down")

    def call(self, *argv):
        subprocess.run(["bash", self.tool, *argv], env=os.environ | {"KUMI_HOSTS": self.name}, check=False)


def one(x):
    if not x.bench.has_links:
        x.title = "no namespaces"
        return
    is_short = x.rng.random() < 0.5
    sizes = x.rng.choice(((1, 1), (2, 2), (1, 3)))
    host = x.rng.choice(("h0", "h1"))
    x.title = f"{host} of {sizes} {'for 3 s' if is_short else 'for good'} without a link"
    x.bench.equip(x)
    with Hosts(x.bench) as hosts:
        env = {"KUMI_HOSTS": hosts.name}
        p = x.start("ip", "netns", "exec", f"{hosts.name}-hub", x.bench.kumi, "train", "config.json", "--out", "run", "-H",
                    f"h0:{sizes[0]},h1:{sizes[1]}", "--rsh", f"{x.bench.source}/tests/hosts/agent", "--set", f"parallel.zero={x.rng.randrange(4)}", env=env)
        if not moment_reached(p, f"{x.dir}/run", ("lines", x.rng.randint(1, STEPS - 20), x.rng.random() * 0.01)):
            x.judge(p, p.wait(), (0,))
        else:
            hosts.call("link", host, "down")
            x.n_events += 1
            begin = time.monotonic()
            if is_short:
                time.sleep(3)
                hosts.call("link", host, "up")
            code = p.wait()
            x.judge(p, code, (0,) if is_short else (6, 7, 0))
            if not is_short and code and time.monotonic() - begin > (SILENCE_S + 4) * x.bench.patience:
                x.note(HANG, f"{time.monotonic() - begin:.1f} s after the link went down")
            if not is_short and code in (6, 7) and not any(b" on host h" in line for line in p.errors()):
                x.note(EXIT, f"no host in: {p.tail()}")
    check_finished(x, "run")
