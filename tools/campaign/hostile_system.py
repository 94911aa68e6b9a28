# SPDX-License-Identifier: Apache-2.0
"""Environments, command lines, limits of the system and places that cannot be written to."""
import glob
import os

from base import read
from base import rows as rows_of
from hostile import ANY, FEW, TRAIN, Row, has_limits, has_tmpfs

USAGE = (2,)
RUN = ("train", "config.json", "--out", "r", "--until", "2", "--set", "train.eval_tokens=32")


def environments():
    """Launchers' variables and kumi's own: used, ignored, or refused with their name."""
    table = [
        ("RANK -1", {"RANK": "-1", "WORLD_SIZE": "2"}, USAGE), ("RANK x", {"RANK": "x", "WORLD_SIZE": "2"}, USAGE), ("RANK alone", {"RANK": "0"}, ANY), ("WORLD_SIZE 0", {"RANK": "0", "WORLD_SIZE": "0"}, USAGE), ("WORLD_SIZE -1", {"RANK": "0", "WORLD_SIZE": "-1"}, USAGE),
        ("WORLD_SIZE 10^9", {"RANK": "0", "WORLD_SIZE": "1000000000"}, ANY), ("WORLD_SIZE 10^30", {"RANK": "0", "WORLD_SIZE": "1" + "0" * 30}, USAGE), ("RANK beyond WORLD_SIZE", {"RANK": "2", "WORLD_SIZE": "2"}, USAGE), ("empty RANK", {"RANK": "", "WORLD_SIZE": ""}, ANY),
        ("LOCAL_RANK x", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "x"}, ANY), ("LOCAL_WORLD_SIZE 9", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "9"}, ANY),
        ("KUMI_RANK without a job", {"KUMI_RANK": "0", "KUMI_WORLD_SIZE": "2"}, ANY), ("KUMI_JOB nonsense", {"KUMI_JOB": "x", "KUMI_RANK": "0", "KUMI_WORLD_SIZE": "2", "KUMI_CONTROL_FD": "0"}, ANY), ("KUMI_CONTROL_FD 999", {"KUMI_JOB": "1", "KUMI_RANK": "0", "KUMI_WORLD_SIZE": "2", "KUMI_CONTROL_FD": "999"}, ANY),
        ("KUMI_CONTROL_FD -1", {"KUMI_JOB": "1", "KUMI_RANK": "0", "KUMI_WORLD_SIZE": "2", "KUMI_CONTROL_FD": "-1"}, ANY), ("KUMI_RANK 10^9", {"KUMI_JOB": "1", "KUMI_RANK": "1000000000", "KUMI_WORLD_SIZE": "2", "KUMI_CONTROL_FD": "0"}, ANY), ("KUMI_WORLD_SIZE -1", {"KUMI_JOB": "1", "KUMI_RANK": "0", "KUMI_WORLD_SIZE": "-1", "KUMI_CONTROL_FD": "0"}, ANY),
        ("KUMI_THREADS x", {"KUMI_THREADS": "x"}, ANY), ("KUMI_THREADS 0", {"KUMI_THREADS": "0"}, ANY), ("KUMI_THREADS -1", {"KUMI_THREADS": "-1"}, ANY), ("KUMI_THREADS 10^9", {"KUMI_THREADS": "1000000000"}, ANY), ("KUMI_PIN x", {"KUMI_PIN": "x"}, ANY), ("KUMI_FAULT nonsense", {"KUMI_FAULT": "x:y"}, ANY), ("KUMI_CACHE unusable", {"KUMI_CACHE": "/proc/x"}, ANY),
        ("KUMI_CACHE a file", {"KUMI_CACHE": "/dev/null"}, ANY), ("KUMI_CACHE of 10,000 letters", {"KUMI_CACHE": "/" + "x" * 10000}, ANY), ("KUMI_LOG nonsense", {"KUMI_LOG": "x=y,,=%s"}, ANY), ("no HOME", {"HOME": None, "KUMI_CACHE": None, "XDG_CACHE_HOME": None}, (0,)), ("HOME nonsense", {"HOME": "\n", "KUMI_CACHE": None}, (0,)),
        ("COLUMNS 0", {"COLUMNS": "0", "LINES": "-1", "TERM": "x"}, (0,)), ("COLUMNS 10^9", {"COLUMNS": "1000000000"}, (0,)), ("LC_ALL nonsense", {"LC_ALL": "xx_XX.UTF-99"}, (0,)), ("a German locale", {"LC_ALL": "de_DE.UTF-8"}, (0,)), ("TZ nonsense", {"TZ": "x" * 1000}, (0,)), ("TMPDIR nonsense", {"TMPDIR": "/proc/x"}, (0,)), ("no PATH", {"PATH": None}, (0,)),
        ("Open MPI's variables", {"OMPI_COMM_WORLD_RANK": "-1", "OMPI_COMM_WORLD_SIZE": "x"}, ANY), ("Slurm's variables", {"SLURM_PROCID": "x", "SLURM_NTASKS": "-3"}, ANY), ("PMI's variables", {"PMI_RANK": "7", "PMI_SIZE": "2"}, ANY),
    ]
    return [Row(f"environment: {name}", codes, *TRAIN, env=env) for name, env, codes in table] + [
        Row(f"environment and -n 2: {name}", (0, *codes) if codes != (0,) else codes, *TRAIN, "-n", "2", env=env) for name, env, codes in table] + [
        Row("environment: a rank alone of two", (7,), *TRAIN, env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, deadline_s=90)]


def command_lines():
    bad = [
        ("",), ("x",), ("--x",), ("train",), ("train", "a", "b"), ("train", "config.json", "-n"), ("train", "config.json", "--out"), ("train", "config.json", "--set"), ("train", "config.json", "--resume=x"), ("train", "config.json", "--until", "x"),
        ("train", "config.json", "--until", "-1"), ("train", "config.json", "--until", "99999999999999999999"), ("train", "config.json", "--max-time", "x"), ("train", "config.json", "--max-time", "-1"), ("train", "config.json", "--max-time", "nan"), ("train", "config.json", "--max-time", "1:2:3:4"),
        ("train", "config.json", "--json"), ("train", "config.json", "--trial", "--resume"), ("train", "config.json", "--overwrite", "--resume"), ("train", "config.json", "--overwrite", "--resume=auto"), ("ckpt",), ("ckpt", "x"), ("ckpt", "list"), ("ckpt", "export", "r"), ("ckpt", "digest"), ("sample",), ("eval",), ("translate",),
        ("plan",), ("plan", "--params", "x"), ("plan", "--params", "-1"), ("plan", "--params", "nan"), ("plan", "--params", "1e300"), ("plan", "--params", "1e9", "--zero", "9"), ("plan", "--params", "1e9", "--replicate", "0"), ("plan", "config.json", "--limit", "x"), ("plan", "config.json", "--limit", "-1"),
        ("plan", "config.json", "-n", "0"), ("plan", "config.json", "--picture", "a.bmp"), ("graph",), ("graph", "config.json", "--rank", "99"), ("graph", "config.json", "--rank", "-1"), ("graph", "config.json", "--after", "x"), ("run",), ("run", "-n", "2"), ("run", "-n", "2", "--"), ("run", "-n", "0", "--", "true"), ("run", "-n", "2", "--", "./nowhere"),
        ("run", "-n", "2", "--", "."), ("run", "-n", "2", "--", ""), ("run", "-n", "2", "--threads", "-1", "--", "true"), ("bench",), ("bench", "x"), ("bench", "op", "x"), ("bench", "comm", "x"), ("bench", "comm", "all_reduce", "--bytes", "-1"), ("bench", "comm", "--bytes", "x"), ("bench", "comm", "-n", "0"), ("bench", "scaling", "config.json", "-n", "1,,2"),
        ("bench", "scaling", "config.json", "-n", "x"), ("bench", "peak", "--threads", "-1"), ("tokenizer",), ("tokenizer", "encode"), ("tokenizer", "train"), ("tokenizer", "train", "--vocab", "-1", "text"), ("tokenizer", "train", "--vocab", "x", "text"), ("tokenizer", "train", "--min-frequency", "-1", "text"), ("data",), ("data", "verify"), ("help", "x"),
    ]
    rows = [Row(f"kumi {' '.join(argv)}", USAGE, *argv) for argv in bad]
    rows += [Row(f"-n {n[:20]}", USAGE, *TRAIN, "-n", n) for n in ("0", "-1", "513", "3", "1e3", "2.5", "", " ", "99999999999999999999", "x", "auto2", "0x2")]
    rows += [Row(f"--set {s[:30]}", USAGE, *TRAIN, "--set", s) for s in ("", "=", "x", "train", "train=", "train.=1", ".steps=1", "train.steps", "train.steps=", "train.steps.x=1", "train..steps=1", "x" * 100000, "model={", "model=3", "train=[]", "\n=1", "train.steps=1=2")]
    rows += [Row(f"--out {o[:30]!r}", codes, "train", "config.json", "--out", o, *FEW) for o, codes in (("", (2, 5)), ("/proc/x/y", (5,)), ("text/x", (5,)), ("text", (5,)), ("/dev/null", (5,)), ("/dev/full", (5,)), ("x" * 300, (5,)), ("y/" * 3000, (2, 5)), ("/", ANY), (".", ANY), ("a\nb", (0, 2)), ("%s%n", (0,)), ("é\xff", (0, 2)))]
    missing = [("ckpt", "list", "nowhere"), ("ckpt", "verify", "nowhere"), ("ckpt", "digest", "nowhere"), ("ckpt", "digest", "/proc"), ("ckpt", "list", "text"), ("ckpt", "digest", "text"), ("ckpt", "export", "nowhere", "--to", "x"), ("ckpt", "import", "nowhere", "--to", "x"), ("sample", "nowhere"), ("sample", "text"), ("sample", "/dev/null"), ("eval", "nowhere"),
               ("translate", "nowhere"), ("data", "verify", "nowhere"), ("tokenizer", "encode", "--tokenizer", "nowhere"), ("tokenizer", "train", "nowhere"), ("tokenizer", "train", "/dev/null"), ("tokenizer", "train", ".")]
    rows += [Row(f"kumi {' '.join(argv)}", (0, 2, 3, 4) if argv[1] in ("list", "verify") else (2, 3, 4), *argv) for argv in missing]
    return rows


def run_is_there(folder):
    return None if os.path.isdir(f"{folder}/r/checkpoints/step-00000002") else "the run that --overwrite was to replace is gone"


def overwriting():
    """A run that cannot begin leaves the one that it was to replace."""
    bad = (("--set", "train.stepz=1"), ("--set", "data.train=nowhere"), ("-n", "3"), ("--set", "parallel.isa=x"), ("--set", "memory.offload={\"optimizer\":\"file\",\"path\":\"/proc/x\"}"), ("--resume",), ("--resume=auto",),
           ("--set", "model.n_embd=1000000", "--set", "model.vocab_size=100000000"))
    return [Row(f"--overwrite by a run with {' '.join(b)}", (2, 3, 5, 13, 14), "train", "config.json", "--out", "r", "--overwrite", *b, shell='"$1" train config.json --out r --until 2 >/dev/null 2>&1; %KUMI%', check=run_is_there) for b in bad]


def of_a_run():
    """Commands on a small run, with nonsense for each option."""
    bad = [("--tokens", "-1"), ("--tokens", "x"), ("--temperature", "nan"), ("--temperature", "-1"), ("--temperature", "x"), ("--top-k", "-1"), ("--top-p", "2"), ("--top-p", "nan"), ("--top-p", "-1"), ("--seed", "x"), ("--batch", "0"), ("--batch", "-1"), ("--prompt-file", "nowhere"),
           ("--prompts", "/dev/null"), ("--dtype", "x"), ("--ema", "x"), ("--prompt", "a", "--prompts", "text")]
    odd = [("--temperature", "1e300"), ("--temperature", "1e-300"), ("--top-k", "1000000"), ("--top-p", "1e-300"), ("--prompt", ""), ("--prompt", "\udcff\udcfe"), ("--prompt", "x" * 100000), ("--stop", ""), ("--batch", "300"), ("--tokens", "0"), ("--seed", "-1"), ("--prompt-file", "/dev/null")]
    rows = [Row("nonsense for sample", (0, 2, 3, 13), each=[RUN] + [("sample", "r", *o) for o in bad + odd], deadline_s=120)]
    rows.append(Row("nonsense for sample is refused", (2, 3, 13), each=[("sample", "r", *o) for o in bad if o[0] != "--seed"], shell='"$1" train config.json --out r --until 1 >/dev/null 2>&1; %KUMI%'))
    rows.append(Row("nonsense for eval", (2, 3), each=[("eval", "r", *o) for o in (("--stride", "-1"), ("--stride", "x"), ("--stride", "99999"), ("-n", "0"), ("-n", "3000"), ("--data", "nowhere"), ("--bleu",), ("--beam", "-1"))], shell='"$1" train config.json --out r --until 1 >/dev/null 2>&1; %KUMI%'))
    rows.append(Row("nonsense for export", (2, 3, 5, 11), each=[("ckpt", "export", "r", *o) for o in (("--to", ""), ("--to", "/proc/x"), ("--to", "text"), ("--to", "."), ("--to", "text/x"), ("--to", "x", "--dtype", "x"), ("--to", "x", "--shard-size", "0"), ("--to", "x", "--shard-size", "-1"), ("--to", "x", "--shard-size", "nan"))],
                    shell='"$1" train config.json --out r --until 1 >/dev/null 2>&1; %KUMI%'))
    rows.append(Row("a shard for each tensor", (0,), each=[RUN, ("ckpt", "export", "r", "--to", "x", "--shard-size", "1B")]))
    rows.append(Row("translate with a model of text", USAGE, each=[("translate", "r")], shell='"$1" train config.json --out r --until 1 >/dev/null 2>&1; %KUMI%'))
    return rows


def metrics_are_whole(folder):
    """A file that took the place of a closed descriptor would hold what was printed."""
    for name in glob.glob(f"{folder}/*/metrics.jsonl"):
        text = read(name)
        if len(rows_of(text)) != text.count(b"\n") or not text.endswith(b"\n"):
            return "metrics.jsonl holds other text"
    return "the lock holds text" if any(read(n) for n in glob.glob(f"{folder}/*/lock")) else None


def outputs():
    """What cannot be written ends with 5, whatever command writes it."""
    prepare = '"$1" train config.json --out r --until 2 >/dev/null 2>&1; '
    commands = [("tokenizer", "encode", "--tokenizer", "byte"), ("sample", "r", "--tokens", "20000"), ("sample", "r", "--tokens", "5"), ("eval", "r"), ("eval", "r", "--json"), ("ckpt", "digest", "r"), ("ckpt", "list", "r"), ("ckpt", "list", "r", "--json"), ("ckpt", "verify", "r"), ("plan", "config.json"), ("plan", "config.json", "--json"),
                ("plan", "config.json", "--roofline"), ("graph", "config.json"), ("info",), ("info", "--json"), ("help", "config"), ("help",), ("train", "config.json", "--out", "new", "--until", "2"), ("tokenizer", "train", "--json", "--vocab", "260", "text"), ("train", "config.json", "--explain-deepspeed", "--deepspeed", "ds.json")]
    files = {"ds.json": {"train_batch_size": 8}}
    rows = [Row(f"a full disk behind standard output: {' '.join(c)}", (5,), *c, files=files, shell=prepare + "%KUMI% <text >/dev/full") for c in commands]
    rows.append(Row("a full disk behind standard output: decode", (5,), "tokenizer", "decode", "--tokenizer", "byte", files={"ids": "72 105 10\n" * 20000}, shell="%KUMI% <ids >/dev/full"))
    rows += [Row(f"a closed standard output: {' '.join(c)}", (5,), *c, files=files, shell=prepare + "%KUMI% <text >&-") for c in commands]
    rows += [Row(f"closed standard error: {c[0]}", (0,), *c, shell=prepare + "%KUMI% 2>&-", check=metrics_are_whole) for c in (("train", "config.json", "--out", "new", "--until", "2"), ("train", "config.json", "--out", "new", "--until", "2", "-n", "2"), ("eval", "r"))]
    rows += [Row(f"everything closed: {c[0]} {' '.join(c[4:])}", (0, 5), *c, shell="%KUMI% <&- >&- 2>&-", is_mute=True, check=metrics_are_whole) for c in (("train", "config.json", "--out", "new", "--until", "2"), ("train", "config.json", "--out", "new", "--until", "2", "-n", "2"), ("train", "config.json", "--out", "new", "--set", "parallel.transport=thread", "-n", "2"))]
    rows.append(Row("a working folder that is gone", (2, 5), "train", "config.json", "--out", "o", shell="mkdir gone; cd gone; rmdir ../gone; %KUMI%"))
    return rows


def limits():
    """Resources that run out: 5 for storage, 13 for memory, descriptors and processes."""
    rows = []
    for n in ("1", "2"):
        for kb in (0, 1, 8, 40):
            rows.append(Row(f"files of at most {kb} KiB, {n} ranks", (5, 13), *TRAIN[:4], "-n", n, shell=f"exec 2> >(cat >&2); ulimit -f {kb}"))
        rows.append(Row(f"files of at most 100 KiB, {n} ranks, async", (0, 5, 13), *TRAIN[:4], "-n", n, "--set", "checkpoint.async=true", shell="exec 2> >(cat >&2); ulimit -f 100"))
        for fds in (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24):
            if fds >= 4: # with fewer, the dynamic linker ends the command
                rows.append(Row(f"{fds} descriptors, {n} ranks", (0, 2, 3, 5, 13), *TRAIN, "-n", n, shell=f"ulimit -n {fds}"))
        for mb in (50, 100, 200, 300, 600):
            rows.append(Row(f"{mb} MB of addresses, {n} ranks", (0, 3, 5, 13, 14), *TRAIN, "-n", n, shell=f"ulimit -v {mb * 1000}", needs=has_limits))
        rows.append(Row(f"a stack of 256 KiB, {n} ranks", (0, 13), *TRAIN, "-n", n, shell="ulimit -s 256", needs=has_limits))
        rows.append(Row(f"no locked memory, {n} ranks", (0,), *TRAIN, "-n", n, shell="ulimit -l 0"))
        rows.append(Row(f"the lowest priority, {n} ranks", (0,), *TRAIN, "-n", n, shell="renice -n 19 $$ >/dev/null"))
    mount = "mkdir full; mount -t tmpfs -o size=%s none full; "
    unshared = 'export -n X; exec unshare -m bash -c \'%s\' bash "$@"'
    for size in ("4k", "64k", "200k"):
        for more in ((), ("--set", "checkpoint.async=true"), ("-n", "2")):
            rows.append(Row(f"a disk of {size} {' '.join(more)}", (0, 5), "train", "config.json", "--out", "full/o", *more, shell=unshared % (mount % size + 'exec "$@"') + " # %KUMI%", needs=has_tmpfs))
    rows.append(Row("an offload folder on a disk of 4k", (5, 13), *TRAIN, "--set", 'memory.offload={"optimizer":"file","path":"full"}', shell=unshared % (mount % "4k" + 'exec "$@"') + " # %KUMI%", needs=has_tmpfs))
    rows.append(Row("/dev/shm of 4k", (0, 5, 13), *TRAIN, "-n", "2", shell=unshared % 'mount -t tmpfs -o size=4k none /dev/shm; exec "$@"' + " # %KUMI%", needs=has_tmpfs))
    rows.append(Row("no /proc", ANY, *TRAIN, "-n", "2", shell=unshared % 'mount -t tmpfs none /proc; exec "$@"' + " # %KUMI%", needs=has_tmpfs))
    rows.append(Row("a read-only folder", (5,), "train", "config.json", "--out", "full/o", shell=unshared % ("mkdir full; mount -t tmpfs -o ro none full; " + 'exec "$@"') + " # %KUMI%", needs=has_tmpfs))
    rows.append(Row("export to a disk of 4k", (5,), "ckpt", "export", "r", "--to", "full/x", shell='"$1" train config.json --out r --until 1 >/dev/null 2>&1; ' + unshared % (mount % "4k" + 'exec "$@"') + " # %KUMI%", needs=has_tmpfs))
    rows += [Row(f"an offload folder {path}", (2, 5), *TRAIN, "--set", 'memory.offload={"optimizer":"file","path":"%s"}' % path) for path in ("/proc/x", "text", "/dev/null", "", "/sys")]
    return rows


def rows(bench):
    del bench
    return environments() + command_lines() + of_a_run() + outputs() + limits() + overwriting()
