# SPDX-License-Identifier: Apache-2.0
"""Inputs that are wrong on purpose: each ends within its deadline with the expected exit code and one error line.
The rows themselves stand in hostile_*.py; here is what runs them."""
import json
import os
import struct
import subprocess

from base import CONFIG, EXIT, LOSS, Process

DEADLINE_S = 60
FEW = ("--until", "2", "--max-time", "120")
TRAIN = ("train", "config.json", "--out", "o", *FEW)
ANY = (0, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14) # any answer that is documented


class Row:
    """
    One input.

      codes   exit codes that are right for every command
      argv    of kumi; or `each`, several of these, each run after the other
      files   what is written before: name -> bytes, text, an object to be JSON, or a function that gives one of these
      env     variables; None unsets one
      check   called with the experiment's folder afterwards: what is wrong, or None
      is_mute its standard error cannot be read
      shell   bash before `exec kumi`, as "ulimit -f 1"; with the word %KUMI% in it, all of the command
    """

    def __init__(self, name, codes, *argv, each=None, files=None, env=None, shell=None, deadline_s=DEADLINE_S, needs=None, check=None, is_mute=False):
        self.name, self.codes = name, codes if isinstance(codes, tuple) else (codes,)
        self.each = each or [argv]
        self.files, self.env, self.shell = files or {}, env or {}, shell
        self.deadline_s, self.needs, self.check, self.is_mute = deadline_s, needs, check, is_mute


def content(value):
    if callable(value):
        value = value()
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogateescape")


def changed(**sections):
    """CONFIG with other sections or keys."""
    config = json.loads(json.dumps(CONFIG))
    for name, value in sections.items():
        config[name] = config[name] | value if isinstance(value, dict) and isinstance(config.get(name), dict) else value
    return config


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def words(items, name="--set"):
    return [a for i in items for a in (name, i)]


def all_rows(bench):
    import hostile_config
    import hostile_data
    import hostile_system
    return hostile_config.rows(bench) + hostile_data.rows(bench) + hostile_system.rows(bench)


def prepare(bench):
    bench.rows = all_rows(bench)


def count(bench):
    if not hasattr(bench, "rows"):
        prepare(bench)
    return len(bench.rows)


def is_quick(row):
    return row.deadline_s <= DEADLINE_S and len(row.each) < 6


def lay_out(x, files):
    for name, value in files.items():
        path = f"{x.dir}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.islink(path):
            os.remove(path)
        if value == "FIFO":
            os.mkfifo(path)
        elif value == "FOLDER":
            os.makedirs(path, exist_ok=True)
        else:
            with open(path, "wb") as f:
                f.write(content(value))


def command(x, row, argv):
    """bash sets limits and redirections, then becomes the command."""
    kumi = x.bench.kumi
    env = x.environment({k: v for k, v in row.env.items() if v is not None})
    for k in [k for k, v in row.env.items() if v is None]:
        env.pop(k, None)
    if row.shell is None:
        return [kumi, *map(str, argv)], env
    text = row.shell.replace("%KUMI%", '"$@"') if "%KUMI%" in row.shell else row.shell + '; exec "$@"'
    return ["bash", "-c", text, "bash", kumi, *map(str, argv)], env


def one(x):
    row = x.bench.rows[x.index]
    x.title = row.name
    if row.needs and not row.needs(x.bench):
        x.title += " (not here)"
        return
    x.bench.equip(x)
    lay_out(x, row.files)
    for argv in row.each:
        x.n_events += 1
        args, env = command(x, row, argv)
        p = Process(x, args, env, None)
        code = p.wait(row.deadline_s)
        x.no_orphans(p) # a shell's other processes have written what they had to
        if row.is_mute:
            if code not in row.codes and code is not None:
                x.note(EXIT, f"exit {code}, expected {row.codes}: {p.shown()}")
        else:
            x.judge(p, code, row.codes)
        wrong = row.check(x.dir) if row.check else None
        if wrong:
            x.note(LOSS, f"{p.shown()}: {wrong}")
        if len(p.err) > 1 << 20:
            x.note(EXIT, f"{len(p.err)} bytes on standard error: {p.shown()}")
        if code is None:
            return


def has_tmpfs(bench):
    """May this user mount a small file system?"""
    if not hasattr(bench, "tmpfs"):
        bench.tmpfs = subprocess.run(["unshare", "-m", "bash", "-c", "mount -t tmpfs -o size=64k none /mnt"], capture_output=True, check=False).returncode == 0
    return bench.tmpfs


def has_limits(bench):
    """Sanitizers reserve more address space than a limit would grant."""
    return not bench.is_sanitized
