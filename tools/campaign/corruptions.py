# SPDX-License-Identifier: Apache-2.0
"""Every file of a run and of exported weights, damaged in every way, then read by every command: the damage is named,
or does not count; the good snapshots stay; what comes out has the bits of a snapshot, or nothing comes out."""
import os
import random
import shutil

from base import DIGEST, EXIT, LOSS, Experiment, read, rows, snapshots, tree

EVERY, LAST, MORE = 10, 30, 40
LONG = {"train.steps": LAST, "checkpoint.every": EVERY, "checkpoint.keep": 0}
REFUSED = (2, 3, 4, 5)
SAMPLE = ("--tokens", 12, "--temperature", 0, "--prompt", "Q")


# What may become of a file. Each takes the random numbers, the file, and another file of the same folder or below.

def flip(r, path, other):
    del other
    data = bytearray(read(path)) or bytearray(1)
    data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    put(path, data)


def truncate(r, path, other):
    del other
    data = read(path)
    put(path, data[:r.randrange(len(data))] if data else b"")


def extend(r, path, other):
    del other
    put(path, read(path) + r.choice((b"x", b"\0" * 4096, b"}\n")))


def zero(r, path, other):
    del other
    data = bytearray(read(path))
    at = r.randrange(max(1, len(data) - 1))
    n = min(4096, len(data) - at)
    data[at:at + n] = bytes(n)
    put(path, data)


def noise(r, path, other):
    del other
    put(path, r.randbytes(max(16, len(read(path)))))


def swap(r, path, other):
    if other == path: # nothing to swap with
        return noise(r, path, other)
    os.rename(path, path + "~")
    os.rename(other, path)
    os.rename(path + "~", other)
    return None


def directory(r, path, other):
    del r, other
    os.remove(path)
    os.mkdir(path)


def empty(r, path, other):
    del r, other
    put(path, b"")


def delete(r, path, other):
    del r, other
    os.remove(path)


def loop(r, path, other):
    del r, other
    os.remove(path)
    os.symlink(os.path.basename(path), path)


def dangling(r, path, other):
    del r, other
    os.remove(path)
    os.symlink("nowhere", path)


def fifo(r, path, other):
    del r, other
    os.remove(path)
    os.mkfifo(path)


def unreadable(r, path, other):
    del r, other
    if os.geteuid() != 0: # root reads it all the same
        os.chmod(path, 0)


OPERATIONS = (flip, truncate, extend, zero, noise, swap, directory, empty, delete, loop, dangling, fifo, unreadable)
if os.geteuid() == 0:
    OPERATIONS = OPERATIONS[:-1]


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def sets(table):
    return [a for k, v in table.items() for a in ("--set", f"{k}={v}")]


def prepare(bench):
    """The runs that are damaged, and what each of their snapshots says to each command."""
    x = Experiment(bench, "whole", 0)
    bench.equip(x)
    bench.equip(x, "pairs.json", "a.en", "a.ja")
    x.run("train", "config.json", "--out", "run", *sets(LONG))
    shutil.copytree(f"{x.dir}/run", f"{x.dir}/more")
    x.run("train", "config.json", "--out", "more", "--resume", *sets(LONG | {"train.steps": MORE}))
    x.run("train", "pairs.json", "--out", "pairs")
    x.run("tokenizer", "train", "--vocab", 300, "--out", "bpe", "text")
    x.run("train", "config.json", "--out", "bpe-run", *sets(LONG | {"data.tokenizer": "bpe", "model.vocab_size": 300}))
    bench.whole = x.dir
    bench.figures = {}
    for name in snapshots(f"{x.dir}/run"):
        path = f"run/checkpoints/{name}"
        x.run("ckpt", "export", path, "--to", name)
        bench.figures[name] = {"digest": x.run("ckpt", "digest", path).out, "sample": x.run("sample", path, *SAMPLE).out,
                               "eval": x.run("eval", path).out, "export": tree(f"{x.dir}/{name}")}
    bench.more_digest = x.digest("more")
    bench.texts = x.run("sample", "bpe-run", *SAMPLE).out
    bench.cells = cells(bench)
    if x.findings:
        raise SystemExit(f"campaign: what is to be damaged failed: {x.findings[0][1]}")


def cells(bench):
    """(what is damaged, file, operation): all of them, in an order that the seed decides."""
    newest = f"checkpoints/step-{LAST:08}"
    inside = sorted(k for k, v in tree(f"{bench.whole}/run/{newest}").items() if v != "folder")
    found = [("newest", f"{newest}/{f}", o) for f in inside for o in OPERATIONS]
    found += [("all", f, o) for f in inside for o in OPERATIONS]
    found += [("run", f, o) for f in ("metrics.jsonl", "summary.json", "lock") for o in OPERATIONS]
    found += [("pairs", f, o) for f in sorted(os.listdir(f"{bench.whole}/pairs")) if f.endswith(".vocab") for o in OPERATIONS]
    found += [("tokenizer", f, o) for f in sorted(os.listdir(f"{bench.whole}/bpe")) for o in OPERATIONS]
    found += [("export", f, o) for f in ("config.json", "model.safetensors") for o in OPERATIONS]
    found += [("keep", inside[i % len(inside)], o) for i, o in enumerate(OPERATIONS)]
    random.Random(bench.seed).shuffle(found)
    return found


def damage(x, operation, folder, name):
    other = sorted(k for k, v in tree(folder).items() if v not in ("folder", "link", "special") and k != name)
    near = [k for k in other if os.path.dirname(k) == os.path.dirname(name)] or other
    operation(x.rng, f"{folder}/{name}", f"{folder}/{x.rng.choice(near)}" if near else f"{folder}/{name}")


def is_named(p, name):
    """The line names the file or the snapshot that it is in."""
    words = [os.path.basename(name).replace(".xxh3", "").encode(), b"step-%08d" % LAST]
    if name == "lock":
        words.append(b"run directory: ")
    return any(w in p.err for w in words)


def check_reader(x, p, name, figure, of):
    """Success has the figure of the newest snapshot, or of an older one and says so."""
    if p.code != 0:
        if p.code is not None and not is_named(p, name):
            x.note(EXIT, f"{name} is damaged and not named: {p.shown()}: {p.tail()}")
        return
    names = sorted(x.bench.figures)
    if of(x.bench.figures[names[-1]][figure]):
        return
    if not any(of(x.bench.figures[n][figure]) for n in names[:-1]):
        x.note(DIGEST, f"{name} is damaged: {p.shown()} ends with 0 and what is no snapshot's: {p.out[:80]!r}")
    elif not is_named(p, name):
        x.note(EXIT, f"{name} is damaged: {p.shown()} takes an older snapshot without a word")


def readers(x, name):
    """Commands that only read."""
    before = tree(f"{x.dir}/run")
    x.run("ckpt", "list", "run", codes=(0, *REFUSED))
    verify = x.run("ckpt", "verify", "run", codes=(0, *REFUSED))
    if name.startswith("checkpoints/"):
        if verify.code == 0:
            x.note(EXIT, f"{name} is damaged: ckpt verify says nothing")
        elif verify.code is not None and not is_named(verify, name):
            x.note(EXIT, f"{name} is damaged: ckpt verify does not name it: {verify.tail()}")
    for figure, argv in (("digest", ("ckpt", "digest", "run")), ("sample", ("sample", "run", *SAMPLE)), ("eval", ("eval", "run"))):
        p = x.run(*argv, codes=(0, *REFUSED))
        check_reader(x, p, name, figure, lambda wanted, p=p: p.out == wanted)
    p = x.run("ckpt", "export", "run", "--to", "exported", codes=(0, *REFUSED))
    check_reader(x, p, name, "export", lambda wanted: tree(f"{x.dir}/exported") == wanted)
    if p.code != 0 and any("exported" in n for n in os.listdir(x.dir)):
        x.note(LOSS, "a failed export leaves a folder")
    if tree(f"{x.dir}/run") != before:
        x.note(LOSS, f"{name} is damaged: a command that only reads changed the run")


def lines_of(run):
    """Lines of a run's metrics, what was kept aside among them."""
    found = set()
    for name in os.listdir(run):
        if "metrics" in name:
            found |= set(read(f"{run}/{name}").split(b"\n"))
    return found


def resumed(x, name, how, is_any_good):
    """Training goes on from the newest good snapshot, or ends with 4 and changes nothing."""
    shutil.copytree(f"{x.dir}/run", f"{x.dir}/again", symlinks=True, copy_function=copy_special)
    before, lines = tree(f"{x.dir}/again"), [row_text for row_text in read(f"{x.dir}/again/metrics.jsonl").split(b"\n") if rows(row_text)]
    refused = (2, 3, 4, 5, 11) if not name.startswith("checkpoints/") else (4, 5) if not is_any_good else ()
    p = x.run("train", "config.json", "--out", "again", how, *sets(LONG | {"train.steps": MORE}), codes=(0, *refused))
    after = tree(f"{x.dir}/again")
    if p.code == 0:
        if x.digest("again") != x.bench.more_digest:
            x.note(DIGEST, f"{name} is damaged: {how} ends with other bits")
        if b"starting a new run" in p.err:
            x.note(LOSS, f"{name} is damaged: {how} starts afresh")
    elif p.code is not None and p.code > 0 and not is_named(p, name):
        x.note(EXIT, f"{name} is damaged and not named: {p.shown()}: {p.tail()}")
    there = {k[k.index("step-"):].partition("/")[::2] for k in after if "step-" in k} # in checkpoints, or cut off and aside
    lost = [k for k in before if k.startswith("checkpoints/step-") and k[len("checkpoints/"):].partition("/")[::2] not in there]
    if lost:
        x.note(LOSS, f"{name} is damaged: {how} removed {', '.join(sorted(lost)[:3])}")
    gone = [line for line in lines if line not in lines_of(f"{x.dir}/again")]
    if gone:
        x.note(LOSS, f"{name} is damaged: {how}, exit {p.code}: {len(gone)} of {len(lines)} lines of metrics are lost")
    shutil.rmtree(f"{x.dir}/again")


def copy_special(source, target, **kw):
    if os.path.isfile(source) and not os.access(source, os.R_OK):
        put(target, b"")
        os.chmod(target, 0)
        return target
    if os.path.isfile(source) or os.path.islink(source):
        return shutil.copy2(source, target, **kw)
    os.mkfifo(target)
    return target


def in_run(x, where, name, operation):
    shutil.copytree(f"{x.bench.whole}/run", f"{x.dir}/run")
    names = snapshots(f"{x.dir}/run")
    if where == "all":
        for n in names:
            damage(x, operation, f"{x.dir}/run/checkpoints/{n}", name)
        name = f"checkpoints/{names[-1]}/{name}"
    elif where == "newest":
        inside = name.split("/", 2)[2]
        damage(x, operation, f"{x.dir}/run/checkpoints/{names[-1]}", inside)
    else:
        damage(x, operation, f"{x.dir}/run", name)
    readers(x, name)
    for how in ("--resume", "--resume=auto"):
        resumed(x, name, how, where != "all")


def keep(x, name, operation):
    """Damaged snapshots that are newer than the good ones do not push these out."""
    shutil.copytree(f"{x.bench.whole}/more", f"{x.dir}/run")
    names = snapshots(f"{x.dir}/run")
    for n in names[1:]:
        damage(x, operation, f"{x.dir}/run/checkpoints/{n}", name)
    limits = LONG | {"train.steps": MORE, "checkpoint.every": 4, "checkpoint.keep": 3}
    p = x.run("train", "config.json", "--out", "run", "--resume", "--until", 14, *sets(limits))
    good = [n for n in snapshots(f"{x.dir}/run") if x.run("ckpt", "verify", f"run/checkpoints/{n}", codes=(0, 4)).code == 0]
    if p.code == 0 and len(good) < 3: # of steps 10, 12 and 14
        x.note(LOSS, f"keep 3: of snapshots at 10, 12 and 14 beside three damaged newer ones {brief_names(good)} are left")


def brief_names(names):
    return " ".join(str(int(n[5:])) for n in names) or "none"


def beside(x, where, name, operation):
    """Files without checksums: a refusal with one line, or some result; no crash, no hang."""
    any_code = (0, *REFUSED)
    if where == "pairs":
        x.bench.equip(x, "pairs.json", "a.en", "a.ja")
        shutil.copytree(f"{x.bench.whole}/pairs", f"{x.dir}/pairs")
        damage(x, operation, f"{x.dir}/pairs", name)
        x.run("translate", "pairs", codes=any_code)
        x.run("eval", "pairs", codes=any_code)
        x.run("train", "pairs.json", "--out", "pairs", "--resume", *sets({"train.steps": 12}), codes=any_code)
        x.run("ckpt", "verify", "pairs")
    elif where == "tokenizer":
        for folder in ("bpe", "bpe-run"):
            shutil.copytree(f"{x.bench.whole}/{folder}", f"{x.dir}/{folder}")
        damage(x, operation, f"{x.dir}/bpe", name)
        x.run("sample", "bpe-run", *SAMPLE, codes=any_code)
        x.run("tokenizer", "encode", "--tokenizer", "bpe", codes=any_code)
        x.run("train", "config.json", "--out", "bpe-run", "--resume",
              *sets(LONG | {"train.steps": MORE, "data.tokenizer": "bpe", "model.vocab_size": 300}), codes=any_code)
        x.run("ckpt", "verify", "bpe-run")
    else:
        shutil.copytree(f"{x.bench.whole}/step-{LAST:08}", f"{x.dir}/hf")
        damage(x, operation, f"{x.dir}/hf", name)
        codes = (0, 2, 3, 4, 5, 13)
        x.run("ckpt", "import", "hf", "--to", "imported", codes=codes)
        x.run("ckpt", "export", "hf", "--to", "exported", codes=codes)
        x.run("sample", "hf", *SAMPLE, codes=codes)
        x.run("eval", "hf", "--data", "text", codes=codes)
        x.run("train", "config.json", "--out", "run", "--set", 'model={"path":"hf"}', "--until", 2, codes=(*codes, 9)) # a weight may have become 1e38


def count(bench):
    return len(bench.cells)


def one(x):
    x.bench.equip(x)
    where, name, operation = x.bench.cells[x.index % len(x.bench.cells)]
    x.title = f"{operation.__name__} of {name} ({where})"
    x.n_events = 1
    if where in ("newest", "all", "run"):
        in_run(x, where, name, operation)
    elif where == "keep":
        keep(x, name, operation)
    else:
        beside(x, where, name, operation)
