# SPDX-License-Identifier: Apache-2.0
"""A function of a header that can fail is declared KU_STATUS, so that the compiler refuses a call that drops it."""
import re

from run import blank_out, line_of

BODY = re.compile(r"^int (\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.M | re.S)
FAILS = re.compile(r"\bKU_ERR\(|\bKU_ERR_SCOPE\(|\bKU_TRY(?:_OUT)?\(|\breturn KUMI_E")
DECLARED = re.compile(r"^int (\w+)\(", re.M)


def check(tree):
    fails = set()
    for _, text in tree.c_files("src/"):
        fails |= {name for name, body in BODY.findall(blank_out(text)) if FAILS.search(body)}
    for path, text in tree.c_files("src/"):
        if path.endswith(".h"):
            for match in DECLARED.finditer(blank_out(text)):
                if match.group(1) in fails:
                    yield f"{path}:{line_of(text, match.start())}: {match.group(1)} can fail: KU_STATUS, not int"


SOURCE = "int ku_a(int x)\n{\n    KU_TRY(ku_b(x));\n    return KUMI_OK;\n}\n"
EXAMPLES = [
    ({"src/a.c": SOURCE, "src/a.h": "KU_STATUS ku_a(int x);\n"}, None),
    ({"src/a.c": SOURCE, "src/a.h": "/* */\nint ku_a(int x);\n"}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    return x + 1;\n}\n", "src/a.h": "int ku_a(int x);\n"}, None),
]
