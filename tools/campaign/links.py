# SPDX-License-Identifier: Apache-2.0
"""Two hosts in network namespaces (tests/hosts/hosts.sh) whose link goes down: for 3 s, which a job survives, or for good, which ends it
within 11 s, on both sides, under kumi's launcher with exit code 6 or 7. No experiment where the system makes no namespaces."""
import os
import subprocess
import time

from base import EXIT, HANG, MARK, STEPS, moment_reached, read
from hosts import makes_there
from kills import check_finished

END_S = 11 # from the cut to the end of the job
MORE_S = 4  # until what has not ended then is given up


def prepare(bench):
    bench.tool = f"{bench.source}/tests/hosts/hosts.sh"
    bench.has_links = subprocess.run(["bash", bench.tool, "with", "1", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     check=False).returncode == 0
    bench.makes = ["tcp", "tcp", *makes_there(bench)]


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


def start(x, hosts, sizes, launcher):
    """A training on h0 and h1, from the hub."""
    at, agent = f"h0:{sizes[0]},h1:{sizes[1]}", f"{x.bench.source}/tests/hosts/agent"
    train = [x.bench.kumi, "train", "config.json", "--out", "run", "--set", f"parallel.zero={x.rng.randrange(4)}"]
    env = {"KUMI_HOSTS": hosts.name, "KUMI_PLUGINS": os.path.dirname(x.bench.kumi), "UCX_TLS": "tcp,self"}
    argv = {
        "tcp": [*train, "-H", at, "--rsh", agent],
        "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", sum(sizes), "--host", at, "--map-by", "slot",
                    "-x", "KUMI_PLUGINS", "-x", "KUMI_CACHE", "-x", MARK, "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "pml", "ob1", "--mca",
                    "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "10.77.0.0/24", *train],
        "mpich": ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", agent, "-iface", "br0", "-hosts", at, "-n", sum(sizes), *train],
    }[launcher]
    return x.start("ip", "netns", "exec", f"{hosts.name}-hub", *argv, env=env)


def await_ranks(x):
    """The ranks of both sides end. Launchers of MPI and their daemons may wait for each other for minutes, and are killed then."""
    end = time.monotonic() + (END_S + MORE_S) * x.bench.patience
    while any(read(f"/proc/{pid}/cmdline").split(b"\0")[1:2] == [b"train"] for pid in x.processes()):
        if time.monotonic() > end:
            x.note(HANG, f"ranks {END_S + MORE_S} s after the link went down")
            break
        time.sleep(0.05)
    x.gone_s = time.monotonic() - x.fault_s


def one(x):
    if not x.bench.has_links:
        x.title = "no namespaces"
        return
    is_short = x.rng.random() < 0.5
    sizes, launcher = x.rng.choice(((1, 1), (2, 2), (1, 3))), x.rng.choice(x.bench.makes)
    host = x.rng.choice(("h0", "h1"))
    x.group = (f"a link down {'for 3 s' if is_short else 'for good'}", launcher)
    x.title = f"{host} of {sizes} {'for 3 s' if is_short else 'for good'} without a link, {launcher}"
    x.bench.equip(x)
    with Hosts(x.bench) as hosts:
        p = start(x, hosts, sizes, launcher)
        if not moment_reached(p, f"{x.dir}/run", ("lines", x.rng.randint(1, STEPS - 20), x.rng.random() * 0.01)):
            x.judge(p, p.wait(), (0,))
        else:
            hosts.call("link", host, "down")
            x.harmed()
            if is_short:
                time.sleep(3)
                hosts.call("link", host, "up")
                x.judge(p, p.wait(), (0,))
            elif launcher != "tcp":
                await_ranks(x)
                x.kill_all()
                p.wait()
            else:
                code = p.wait()
                x.judge(p, code, (6, 7, 0))
                if code and x.gone_s and x.gone_s > END_S * x.bench.patience:
                    x.note(HANG, f"{x.gone_s:.1f} s after the link went down")
                if code in (6, 7) and not any(b" on host h" in line for line in p.errors()):
                    x.note(EXIT, f"no host in: {p.tail()}")
    check_finished(x, "run")
