# SPDX-License-Identifier: Apache-2.0
"""Runs one check over the sources: run.py CHECK SOURCE_FOLDER BUILD_FOLDER.

A check is a file check_<name>.py with `check(tree)`, which yields one line per complaint, and EXAMPLES, pairs of
(tree, a part of the one complaint expected, or None). The examples run first: a check that finds nothing in a
bad example has no say about good sources.
"""
import importlib
import os
import re
import sys

ROOTS = ("src", "include", "tests", "examples", "bench", "tools", "cmake", "CMakeLists.txt", "Makefile", ".ci")
SKIPPED = 77


class Tree(dict):
    """path -> text, and where the build lies (None in examples)."""

    build = None
    source = None

    def c_files(self, *roots):
        for path, text in sorted(self.items()):
            if path.endswith((".c", ".h", ".def")) and path.startswith(roots or ("",)):
                yield path, text


class Skip(Exception):
    pass


def blank_out(text):
    """C text without comments and literals; lines and columns stay."""

    def spaces(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', spaces, text, flags=re.S)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def read_tree(source, build):
    tree = Tree()
    tree.source, tree.build = source, build
    for root in ROOTS:
        top = os.path.join(source, root)
        found = [top] if os.path.isfile(top) else []
        for folder, folders, files in os.walk(top):
            folders[:] = [f for f in folders if f not in ("fixtures", "__pycache__", "corpus", "results")] # bench/results is git's to ignore
            found += [os.path.join(folder, f) for f in files]
        for path in found:
            with open(path, encoding="utf-8") as f:
                tree[os.path.relpath(path, source)] = f.read()
    return tree


def main():
    name, source, build = sys.argv[1:4]
    module = importlib.import_module("check_" + name)
    for number, (example, expected) in enumerate(module.EXAMPLES):
        said = list(module.check(Tree(example)))
        if len(said) != (expected is not None) or (said and expected not in said[0]):
            print(f"example {number} of {name}: {said}, expected {expected!r}")
            return 1
    try:
        said = list(module.check(read_tree(source, build)))
    except Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    for line in said:
        print(line)
    return 1 if said else 0


if __name__ == "__main__":
    sys.modules["run"] = sys.modules["__main__"]
    sys.exit(main())
