# SPDX-License-Identifier: Apache-2.0
"""The include rule: a module includes itself and what its row in CMakeLists.txt names, all of lower floors."""
import re

from run import line_of

ROW = re.compile(r"^kumi_module\((\w+) FLOOR (\d+)(?: USES ([a-z ]+?))?(?: LIBS [^)]*)?\)", re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)


def check(tree):
    floor, uses = {}, {}
    for name, level, used in ROW.findall(tree["CMakeLists.txt"]):
        floor[name], uses[name] = int(level), used.split()
    for name, used in uses.items():
        for other in used:
            if floor.get(other, 99) >= floor[name]:
                yield f"CMakeLists.txt: {name} (floor {floor[name]}) uses {other} (floor {floor.get(other, '?')})"
    for path, text in tree.c_files("src/", "include/", "examples/"):
        parts = path.split("/")
        if parts[0] == "src":
            module = parts[1]
            if module != "cli" and module not in floor:
                yield f"{path}: module {module} has no row in CMakeLists.txt"
                continue
            allowed = {"cli", "base"} if module == "cli" else {module, *uses[module]}
        else:
            module, allowed = parts[0], set()
        for match in INCLUDE.finditer(text):
            folder = match.group(1).split("/")[0] if "/" in match.group(1) else None
            if folder == "kumi" or folder in allowed:
                continue
            where = f"{path}:{line_of(text, match.start())}: {match.group(1)}"
            if folder is None:
                yield f"{where}: name the folder, as in \"{module}/{match.group(1)}\""
            else:
                names = " ".join(sorted(allowed | {"kumi"}))
                yield f"{where}: {module} may include {names}; not {folder}"


HOUSE = ("kumi_module(base FLOOR 0 LIBS m)\nkumi_module(op FLOOR 2 USES base)\n"
         "kumi_module(ir FLOOR 3 USES base op LIBS x y)\nkumi_module(comm FLOOR 2 USES base)\n")


def example(path, include, house=HOUSE):
    return {"CMakeLists.txt": house, path: f'#include <stdio.h>\n#include "{include}"\n'}


EXAMPLES = [
    (example("src/ir/graph.c", "op/op.h"), None),
    (example("src/ir/graph.c", "ir/graph.h"), None),
    (example("src/ir/graph.c", "kumi/status.h"), None),
    (example("src/cli/main.c", "base/str.h"), None),
    (example("src/ir/graph.c", "comm/job.h"), "src/ir/graph.c:2: comm/job.h: ir may include base ir kumi op; not comm"),
    (example("src/op/x/deep.c", "ir/graph.h"), "not ir"),
    (example("src/base/err.h", "op/op.h"), "not op"),
    (example("src/cli/main.c", "ir/graph.h"), "cli may include base cli kumi; not ir"),
    (example("src/ir/graph.c", "graph.h"), "name the folder"),
    (example("src/new/a.c", "base/err.h"), "module new has no row"),
    (example("include/kumi/a.h", "base/err.h"), "not base"),
    (example("examples/mlp.c", "base/err.h"), "not base"),
    (example("src/op/op.c", "op/op.h", HOUSE.replace("op FLOOR 2 USES base", "op FLOOR 2 USES comm")),
     "op (floor 2) uses comm (floor 2)"),
]
