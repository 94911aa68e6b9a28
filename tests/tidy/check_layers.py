# SPDX-License-Identifier: Apache-2.0
"""The include rule: a folder includes itself, its parents, and what its row in CMakeLists.txt names.

A module (src/base) names modules of lower floors, a subfolder (src/pass/state) siblings. A parent includes none of its
subfolders: what siblings share stands in the parent's headers. So no two folders include each other.
"""
import re

from run import line_of

ROW = re.compile(r"^kumi_module\((\w+) FLOOR (\d+)(?:\s+USES ([a-z ]+?))?(?:\s+LIBS [^)]*)?\)", re.M)
FOLDER = re.compile(r"^kumi_folder\(([\w/]+)(?:\s+USES\s+([a-z/\s]+?))?\)", re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)


def rows(cmake):
    """Of each module its floor and the modules it may include, of each subfolder its siblings; and what is wrong."""
    floor, uses, wrong = {}, {}, []
    for name, level, used in ROW.findall(cmake):
        floor[name], uses[name] = int(level), used.split()
    for name, used in list(uses.items()):
        wrong += [f"CMakeLists.txt: {name} (floor {floor[name]}) uses {other} (floor {floor.get(other, '?')})"
                  for other in used if floor.get(other, 99) >= floor[name]]
    for name, used in FOLDER.findall(cmake):
        parent = name.rpartition("/")[0]
        uses[name] = used.split()
        if parent not in uses:
            wrong.append(f"CMakeLists.txt: {name}: {parent or 'its parent'} has no row above it")
        wrong += [f"CMakeLists.txt: {name} uses {other}, which is no sibling with a row above it"
                  for other in uses[name] if other not in uses or other.split("/")[0] != name.split("/")[0]]
    return uses, wrong


def may_include(folder, uses):
    """Folders whose headers a file of `folder` may include: exact ones, and modules with all that is in them."""
    parts = folder.split("/")
    exact = {"/".join(parts[:n]) for n in range(1, len(parts) + 1)} | set(uses[folder] if len(parts) > 1 else ())
    return exact, set(uses[parts[0]])


def check(tree):
    uses, wrong = rows(tree["CMakeLists.txt"])
    yield from wrong
    for path, text in tree.c_files("src/", "include/", "examples/"):
        folder, module = path.rpartition("/")[0], path.split("/")[0]
        exact, modules = set(), set()
        if module == "src":
            folder = folder[len("src/"):]
            if folder == "cli":
                exact, modules = {"cli"}, {"base"}
            elif folder == "cli/ps":  # the program kumi-ps
                exact, modules = {"cli", "cli/ps"}, {"base", "ps"}
            elif folder not in uses:
                yield f"{path}: folder {folder} has no row in CMakeLists.txt"
                continue
            else:
                exact, modules = may_include(folder, uses)
        for match in INCLUDE.finditer(text):
            other = match.group(1).rpartition("/")[0]
            if other == "kumi" or other in exact or other.split("/")[0] in modules:
                continue
            where = f"{path}:{line_of(text, match.start())}: {match.group(1)}"
            if not other:
                yield f"{where}: name the folder, as in \"{folder}/{match.group(1)}\""
            else:
                yield f"{where}: {folder} may include {' '.join(sorted(exact | modules | {'kumi'}))}; not {other}"


HOUSE = ("kumi_module(base FLOOR 0 LIBS m)\nkumi_module(op FLOOR 2 USES base)\n"
         "kumi_module(ir FLOOR 3 USES base op LIBS x y)\nkumi_module(comm FLOOR 2 USES base)\n"
         "kumi_folder(op/x)\nkumi_folder(op/y USES\n    op/x)\nkumi_folder(base/os)\n")


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
    (example("src/cli/main.c", "ps/proto.h"), "not ps"),
    (example("src/cli/ps/main.c", "ps/proto.h"), None),
    (example("src/cli/ps/main.c", "cli/cli.h"), None),
    (example("src/cli/ps/main.c", "ir/graph.h"), "not ir"),
    (example("src/ir/graph.c", "graph.h"), "name the folder"),
    (example("src/new/a.c", "base/err.h"), "folder new has no row"),
    (example("src/op/x/a.c", "op/op.h"), None),
    (example("src/op/x/a.c", "base/os/os.h"), None),
    (example("src/op/y/a.c", "op/x/a.h"), None),
    (example("src/op/x/a.c", "op/y/a.h"), "op/x may include base kumi op op/x; not op/y"),
    (example("src/op/op.c", "op/x/a.h"), "op may include base kumi op; not op/x"),
    (example("src/op/z/a.c", "op/op.h"), "folder op/z has no row"),
    (example("src/op/op.c", "op/op.h", HOUSE + "kumi_folder(op/z USES base/os)\n"), "no sibling"),
    (example("src/op/op.c", "op/op.h", HOUSE + "kumi_folder(nn/z)\n"), "nn has no row above it"),
    (example("include/kumi/a.h", "base/err.h"), "not base"),
    (example("examples/mlp.c", "base/err.h"), "not base"),
    (example("src/op/op.c", "op/op.h", HOUSE.replace("op FLOOR 2 USES base", "op FLOOR 2 USES comm")),
     "op (floor 2) uses comm (floor 2)"),
]
