# SPDX-License-Identifier: Apache-2.0
"""clang-format 14 decides how C looks."""
import re
import shutil
import subprocess

from run import Skip

EXAMPLES = []


def formatter():
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and re.search(r"version 14\.", subprocess.run([path, "--version"], text=True, check=True,
                                                             stdout=subprocess.PIPE).stdout):
            return path
    raise Skip("clang-format 14 is not installed")


def differs(program, source, paths):
    """Whether clang-format would change any of these; its own output has one block per place."""
    done = subprocess.run([program, "--dry-run", "-Werror", *paths], cwd=source, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return re.findall(r"^(\S+?):(\d+):\d+: error", done.stdout, re.M) if done.returncode else []


def check(tree):
    program = formatter()
    own = subprocess.run([program, "--dry-run", "-Werror", "--style=file", "--assume-filename=a.c"], cwd=tree.source,
                         input="int  x;\n", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if own.returncode == 0:
        yield "clang-format: finds nothing in \"int  x;\""
    first = {}
    for path, line in differs(program, tree.source, [p for p, _ in tree.c_files() if not p.endswith(".def")]):
        first.setdefault(path, line)
    for path, line in first.items():
        yield f"{path}:{line}: clang-format -i {path}"
