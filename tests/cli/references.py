# SPDX-License-Identifier: Apache-2.0
"""references.py KUMI SOURCE: one line for each thing that is cited and is not there; exit code 1 if there is any.

The checks run over a page of bad citations first: each must be found there.
"""
import glob
import os
import re
import shlex
import subprocess
import sys

kumi, source = sys.argv[1:]
README_LINES = 80
FOLDERS = r"(?:src|include|tests|docs|tools|bench|configs|examples|cmake)"


def run(*args):
    return subprocess.run([kumi, *args], capture_output=True, text=True, timeout=60, check=True).stdout


def read(path):
    with open(os.path.join(source, path), encoding="utf-8") as f:
        return f.read()


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def anchors(text):
    return {slug(h) for h in re.findall(r"^#+ +(.*)$", text, re.M)}


def links(path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if name and not os.path.exists(os.path.join(source, to)):
            yield f"link to {target}: no such file"
        elif anchor and anchor not in anchors(read(to) if name else text):
            yield f"link to {target}: no such section"


def files(path, text):
    """Names of files of this repository: whole paths in `code` and in blocks; "*" and "<op>" stand for any name."""
    for name in set(re.findall(rf"(?<![\w./<-])({FOLDERS}/[\w./*<>-]*\w\.[a-z]\w*|{FOLDERS}/[\w*/-]+)(?![\w/])", text)):
        pattern = re.sub(r"<\w+>", "*", name)
        if not glob.glob(os.path.join(source, pattern)) and not glob.glob(os.path.join(source, pattern + ".*")) and name not in BUILT:
            yield f"{name}: no such file"
    for name in set(re.findall(r"`([\w-]+\.(?:c|h|def))`", text)):
        if name not in SOURCES and name not in OF_READERS:
            yield f"{name}: no such file"


SOURCES = {name for top in ("src", "include", "tests", "bench", "examples") for _, _, names in os.walk(os.path.join(source, top)) for name in names}
OF_READERS = {"circle.c"}
BUILT = {"bench/weights_bench", "bench/ckpt_bench", "bench/mpi_comm", "examples/allreduce", "bench/results"}  # in build/, or made by the bench


def functions(path, text):
    for name in sorted(set(re.findall(r"\bkumi_\w+\b", text))):
        if name.endswith("_") or name.isupper() or re.match(r"kumi_STATIC_|kumi_(folder|module|ps)$", name):  # a prefix; names in CMake; proto/kumi_ps.proto
            continue
        if not re.search(rf"\b{name}\b", PUBLIC):
            yield f"{name}: not in include/kumi"


def keys(path, text):
    for name in sorted(set(re.findall(r"`((?:data|train|optimizer|schedule|precision|memory|parallel|checkpoint)\.[a-z_0-9]+)[`:.\[= ]", text))):
        is_file = name.endswith((".c", ".bin", ".json"))
        if name not in KEYS and not is_file and path != "docs/reference/deepspeed.md":
            yield f"{name}: no such key"


def lines_of_commands(text):
    """In blocks, and whole in `code`: (line, words), and no words of what is not a command line."""
    lines = re.findall(r"^    (?:\$ )?(?:build/)?(kumi [a-z].*)$", text, re.M) + re.findall(r"(?<!`)`(?:build/)?(kumi [a-z][^`]*)`(?!`)", text)
    for line in lines:
        try:
            words = shlex.split(re.sub(r"\s#.*", "", line).replace("…", ""))
        except ValueError:
            yield line, None
            continue
        yield line, words[:next((i for i, w in enumerate(words) if w in ("|", "<", ">", "&&")), len(words))]


def commands(path, text):
    for line, words in lines_of_commands(text):
        if words is None:
            yield f"{line}: not a command line"
            continue
        if len(words) < 2 or words[1] not in OPTIONS:
            if re.fullmatch(r"[a-z]+", words[1] if len(words) > 1 else "x"):
                yield f"kumi {words[1] if len(words) > 1 else ''}: no such command"
            continue
        own = words[2:words.index("--")] if "--" in words else words[2:]
        for option in own:
            option = option.strip("[]").split("=")[0]
            if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in OPTIONS[words[1]]:
                yield f"kumi {words[1]} {option}: no such option"
        for name in own:
            if re.match(r"configs/", name) and not os.path.exists(os.path.join(source, name)):
                yield f"kumi {words[1]} {name}: no such file"


def plans(text):
    """A configuration that is trained or planned has a plan with these ranks and keys; of "-n auto" on six cores."""
    for line, words in lines_of_commands(text):
        if words is None or words[1:2] not in (["train"], ["plan"]) or not words[2:3] or not words[2].startswith("configs/"):
            continue
        args = words[2:3]
        for option, value in zip(words[3:], words[4:]):
            if option in ("-n", "-H", "--hostfile", "--set"):
                args += [option, "6" if value == "auto" else value]
        got = subprocess.run([kumi, "plan", *args, "--json"], cwd=source, capture_output=True, text=True, timeout=300)
        if got.returncode:
            yield f"{line}: {got.stderr.strip()}"


def documents(path, text):
    """In comments and messages: docs/FOLDER/PAGE.md, and "NAME in docs/FOLDER/PAGE.md"."""
    for page in set(re.findall(r"\bdocs/([\w/-]+\.md)", text)):
        if not os.path.exists(os.path.join(source, "docs", page)):
            yield f"docs/{page}: no such page"
    for name, page in re.findall(r"\b(\w*_\w+) in docs/([\w/-]+\.md)", text):
        if os.path.exists(os.path.join(source, "docs", page)) and name not in read(f"docs/{page}"):
            yield f"{name} in docs/{page}: not there"


def unreached(pages):
    """Pages that no chain of links leads to from README."""
    seen, left = set(), ["README.md"]
    while left:
        path = left.pop()
        if path in seen or not path.endswith(".md"):
            continue
        seen.add(path)
        for target in re.findall(r"\]\(([^)\s#]+)", pages.get(path, "")):
            left.append(os.path.normpath(os.path.join(os.path.dirname(path), target)))
    return [f"{path}: no page links to it" for path in sorted(pages) if path not in seen]


BLOCK = re.compile(r"<!-- measured:([\w-]+) -->\n(.*?)<!-- /measured -->\n?", re.S)
FIGURE = re.compile(r"\d[\d,.]* ?(?:tok/s|tokens/s|images/s|samples/s|GB/s|GiB/s|G?FLOP/s|ms|µs|us|ns|%)(?!\w)")
PLANNED = re.compile(r"^    \$ kumi plan .*\n(?:(?:    .*)?\n)*", re.M) # what a plan prints is computed, on any machine alike


def measured(pages):
    """Figures of README and the guide stand in blocks, each as the page with the measurements has it."""
    blocks = {}
    for path, text in pages.items():
        if path.startswith(("docs/reference/", "docs/internals/")):
            for name, block in BLOCK.findall(text):
                if name in blocks:
                    yield f"{path}: measured:{name}: it stands on another page as well"
                blocks[name] = block
    for path, text in pages.items():
        if path != "README.md" and not path.startswith("docs/guide/"):
            continue
        for name, block in BLOCK.findall(text):
            if blocks.get(name) != block:
                yield f"{path}: measured:{name}: not as on a page of docs/reference or docs/internals"
        for figure in FIGURE.findall(PLANNED.sub("", BLOCK.sub("", text))):
            yield f"{path}: {figure}: a figure outside of a block <!-- measured:NAME -->"
        if text.count("<!-- measured:") != len(BLOCK.findall(text)):
            yield f"{path}: a block <!-- measured:NAME --> without its end"


def tables(pages):
    """README and the performance page link to the table of every kind of CPU; a block of a table names the kind that it is of."""
    kinds = {path: text.splitlines()[0].lstrip("# ") for path, text in pages.items() if path.startswith("docs/internals/performance/")}
    for path in "README.md", "docs/reference/performance.md":
        linked = {os.path.normpath(os.path.join(os.path.dirname(path), to)) for to in re.findall(r"\]\(([^)\s#]+)", pages[path])}
        for missing in sorted(set(kinds) - linked):
            yield f"{path}: no link to {missing}"
    for path, name, block in ((path, *found) for path, text in pages.items() if path == "README.md" or path.startswith("docs/guide/") for found in BLOCK.findall(text)):
        of = re.fullmatch("(?:comparison|parallel|parameter-server)-(.*)", name)
        kind = of and kinds.get(f"docs/internals/performance/{of.group(1)}.md")
        if of and (kind is None or kind not in block.splitlines()[0]):
            yield f"{path}: measured:{name}: its first line does not name {kind or 'a kind of CPU that has a table'}"


def complete(pages):
    """docs/reference/commands.md has each command with its options, environment.md each variable."""
    parts = dict(re.findall(r"^## kumi (\w+)\n(.*?)(?=^## |\Z)", pages["docs/reference/commands.md"], re.M | re.S))
    for command, options in sorted(OPTIONS.items()):
        if command not in parts:
            yield f"docs/reference/commands.md: lacks kumi {command}"
            continue
        if f"\n| [`kumi {command}`](#kumi-{command}) | " not in pages["docs/reference/commands.md"]:
            yield f"docs/reference/commands.md: its table lacks kumi {command}"
        for option in sorted(options - {"--help", "--markdown"}):
            if f"\n| `{option}` | " not in parts[command]:
                yield f"docs/reference/commands.md: kumi {command} lacks {option}"
    names = set()
    for folder, _, files_here in os.walk(os.path.join(source, "src")):
        for name in files_here:
            names.update(re.findall(r'getenv\("([A-Z_]+)"\)', read(os.path.relpath(os.path.join(folder, name), source))))
    for name in sorted(names):
        if f"`{name}`" not in pages["docs/reference/environment.md"]:
            yield f"docs/reference/environment.md: lacks {name}"


PUBLIC = "".join(read(f"include/kumi/{h}") for h in os.listdir(os.path.join(source, "include/kumi")))
KEYS, section = set(), ""
for line in run("help", "config", "--markdown").splitlines():
    if line.startswith("## "):
        section = line[3:].strip("`")
    elif line.startswith("| `"):
        KEYS.add(f"{section}.{line[3:].split('`')[0]}")
OPTIONS = {c: {"--help", *re.findall(r"^  (--?[a-z][a-z-]*) ", run("help", c), re.M)}
           for c in re.findall(r"^  kumi ([a-z]+) ", run("help"), re.M)}
OPTIONS["help"] |= {"--markdown"}
OPTIONS["ps"] |= set(re.findall(r"--[a-z-]+", run("help", "ps")))  # of a build without gRPC, from its usage
PAGES = ["README.md", "bench/README.md"] + sorted(
    os.path.relpath(path, source) for path in glob.glob(os.path.join(source, "docs/**/*.md"), recursive=True))
IN_PAGES = (links, files, functions, keys, commands)
BAD = """`[n=8](n=8)` [a](none.md) [b](#none) `src/none.c` `none.h` kumi_none() `train.none` `kumi none x` `kumi train C --none`
    build/kumi plan configs/none.json -n 2
/* kumi_x in docs/reference/text.md, docs/none.md */
"""
WANTED = {"none.h: no such file", "link to none.md: no such file", "link to #none: no such section", "src/none.c: no such file", "configs/none.json: no such file",
          "kumi_none: not in include/kumi", "kumi_x: not in include/kumi", "train.none: no such key", "kumi none: no such command", "kumi train --none: no such option",
          "kumi plan configs/none.json: no such file", "docs/none.md: no such page", "docs/none.md: no such file", "kumi_x in docs/reference/text.md: not there"}
found = {line for check in (*IN_PAGES, documents) for line in check("docs/bad.md", BAD)}
assert found == WANTED, found ^ WANTED
TREE = {"README.md": "[a](docs/a.md#x)\n<!-- measured:m -->\n1\n<!-- /measured -->\n7 tokens/s\n", "docs/a.md": "[b](b.md)", "docs/b.md": "",
        "docs/c.md": "", "docs/reference/p.md": "<!-- measured:m -->\n2\n<!-- /measured -->\n"}
assert [re.sub(":.*: batch", ": batch", line) for line in plans("    $ kumi plan configs/gpt2-124m.json -n auto\n`kumi train configs/gpt2-124m.json -n 4 --until 9`")] == [
    "kumi plan configs/gpt2-124m.json -n auto: batch: train.global_batch: 4 is less than virtual_shards = 6; give at least 6, or fewer ranks"]
assert unreached(TREE) == ["docs/c.md: no page links to it", "docs/reference/p.md: no page links to it"]
assert [line.split(": ")[1] for line in measured(TREE)] == ["measured:m", "7 tokens/s"]
COMPARED = {"docs/guide/g.md": "<!-- measured:parameter-server-c -->\nof A\n<!-- /measured -->\n", "README.md": "[a](docs/internals/performance/a-b.md)\n<!-- measured:comparison-a-b -->\nof A\n<!-- /measured -->\n",
            "docs/reference/performance.md": "", "docs/internals/performance/a-b.md": "# A, b\n"}
assert [line.split(": ", 1)[1] for line in tables(COMPARED)] == ["no link to docs/internals/performance/a-b.md",
                                                                 "measured:parameter-server-c: its first line does not name a kind of CPU that has a table",
                                                                 "measured:comparison-a-b: its first line does not name A, b"]
assert len(KEYS) > 100 and len(OPTIONS) > 12, (KEYS, OPTIONS)

failed = 0
pages = {path: read(path) for path in PAGES}
lines = unreached(pages) + list(measured(pages)) + list(tables(pages)) + list(complete(pages))
if pages["README.md"].count("\n") > README_LINES:
    lines.append(f"README.md: {pages['README.md'].count(chr(10))} lines; at most {README_LINES}")
for line in lines:
    print(line)
    failed = 1
for path, text in pages.items():
    for line in [line for check in IN_PAGES for line in check(path, text)] + list(plans(text) if path.startswith("docs/guide/") else ()):
        print(f"{path}: {line}")
        failed = 1
for top in ("include", "src", "examples"):
    for folder, _, names in os.walk(os.path.join(source, top)):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), source)
            for line in documents(path, read(path)):
                print(f"{path}: {line}")
                failed = 1
sys.exit(failed)
