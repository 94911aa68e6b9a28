# SPDX-License-Identifier: Apache-2.0
"""The compiler and the runtime state their invariants: at least 8 KU_ASSERT per 1,000 lines of each folder tree."""
import re

from run import blank_out

FOLDERS = ("ir", "pass", "exec", "comm")
PER_1000 = 8


def check(tree):
    for folder in FOLDERS:
        files = list(tree.c_files(f"src/{folder}/"))
        lines = sum(text.count("\n") for _, text in files)
        count = sum(len(re.findall(r"\bKU_ASSERT\(", blank_out(text))) for _, text in files)
        if 1000 * count < PER_1000 * lines:
            yield (f"src/{folder}: {count} assertions in {lines} lines; at least {PER_1000} per 1,000: state what must "
                   "hold, at the writer and at the reader")


EXAMPLES = [
    ({"src/ir/a.c": "KU_ASSERT(a);\n" + "x;\n" * 124}, None),
    ({"src/ir/a.c": "KU_ASSERT(a);\n" + "x;\n" * 125}, "src/ir: 1 assertions in 126 lines"),
    ({"src/ir/a.c": "KU_ASSERT(a);\n", "src/ir/b/a.h": "/* KU_ASSERT(a) */\n" * 125}, "src/ir: 1 assertions"),
    ({"src/op/a.c": "x;\n" * 200}, None),
]
