# SPDX-License-Identifier: Apache-2.0
"""A file's name has one meaning: two files of src/ share one only as siblings."""
import os

# Folders with a file per family of ops: what is called norm.c in one is about the same ops in all.
FAMILIES = ("op", "nn", "pass/update", "device")


def family(folder):
    return "op" if any((folder + "/").startswith(f + "/") for f in FAMILIES) else os.path.dirname(folder) or folder


def check(tree):
    found = {}
    for path, _ in sorted(tree.c_files("src/")):
        folder, name = os.path.split(path[len("src/"):])
        if name != "private.h":  # the header of a folder's own files
            found.setdefault(name, []).append(folder)
    for name, folders in sorted(found.items()):
        if len({family(f) for f in folders}) > 1:
            yield f"src/{folders[0]}/{name}: src/{folders[1]}/{name} has the same name; say what each does"


EXAMPLES = [
    ({"src/op/norm.c": "", "src/device/cpu/norm/norm.c": "", "src/job/private.h": "", "src/comm/private.h": ""}, None),
    ({"src/comm/far/small.c": "", "src/comm/exchange/small.c": ""}, None),
    ({"src/check/state.c": "", "src/ir/state.c": ""}, "say what each does"),
    ({"src/plan/stages.h": "", "src/pass/pipe/stages.h": ""}, "say what each does"),
]
