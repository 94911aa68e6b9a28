# SPDX-License-Identifier: Apache-2.0
"""A function of a header that can fail is declared KU_STATUS, so that the compiler refuses a call that drops it.

A function can fail that decides an error, passes one on, or returns what a function that can fail returned.
"""
import re

from run import blank_out, line_of

FUNCTION = re.compile(r"^((?:static |inline )*)(?:KU_STATUS|int) (\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.M | re.S)
FAILS = re.compile(r"\bKU_ERR\(|\bKU_ERR_SCOPE\(|\bKU_TRY(?:_OUT)?\(|\breturn KUMI_E")
DECLARED = re.compile(r"^(?:static |inline )*(KU_STATUS|int) (\w+)\(", re.M)
RETURNED = re.compile(r"\breturn\b([^;]*);")
ASSIGNED = re.compile(r"(?<![\w.>(])(\w+) = ([^;,]*)")
CONDITION = re.compile(r"\((\w+) = (\w+)\(")  # if ((status = f(x)) < 0)


def flatten(code):
    """Code with # for what stands in round brackets."""
    n = 1
    while n:
        code, n = re.subn(r"\([^()]*\)", "#", code)
    return code


def values(expression):
    """What a flat expression may be: of a ? b : c, b and c."""
    parts = re.split(r"([?:])", expression)
    return [part.strip() for part, sign in zip(parts[::2], [*parts[1::2], ""]) if sign != "?"]


def passed_on(body):
    """The functions whose result a body returns, at once or through a variable."""
    flat = flatten(body)
    assigned = ASSIGNED.findall(flat) + [(name, call + "#") for name, call in CONDITION.findall(body)]
    called, variables, pending = set(), set(), RETURNED.findall(flat)
    while pending:
        for value in values(pending.pop()):
            if re.fullmatch(r"\w+#", value):
                called.add(value[:-1])
            elif re.fullmatch(r"[a-z]\w*", value) and value not in variables:
                variables.add(value)
                pending += [given for name, given in assigned if name == value]
    return called


def check(tree):
    fails, calls, declared = set(), {}, []
    for path, text in tree.c_files("src/"):
        code = blank_out(text)
        for storage, name, body in FUNCTION.findall(code):
            function = (path if "static" in storage else "", name)
            calls[function] = {(where, called) for called in passed_on(body) for where in (path, "")}
            fails |= {function} if FAILS.search(body) else set()
        for match in DECLARED.finditer(code) if path.endswith(".h") else ():
            function = (path if "static" in match.group() else "", match.group(2))
            if match.group(1) == "int":
                declared.append((function, f"{path}:{line_of(text, match.start())}"))
            else:
                fails.add(function)
    n_known = 0
    while n_known != len(fails):
        n_known = len(fails)
        fails |= {function for function, called in calls.items() if called & fails}
    for function, where in declared:
        if function in fails:
            yield f"{where}: {function[1]} can fail: KU_STATUS, not int"


SOURCE = "int ku_a(int x)\n{\n    KU_TRY(ku_b(x));\n    return KUMI_OK;\n}\n"
PASSED = "KU_STATUS ku_b(int x);\nint ku_a(int x,\n         int y);\n"
EXAMPLES = [
    ({"src/a.c": SOURCE, "src/a.h": "KU_STATUS ku_a(int x);\n"}, None),
    ({"src/a.c": SOURCE, "src/a.h": "/* */\nint ku_a(int x);\n"}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    return x + 1;\n}\n", "src/a.h": "int ku_a(int x);\n"}, None),
    ({"src/a.c": "int ku_a(int x,\n         int y)\n{\n    return ku_b(x + y);\n}\n", "src/a.h": PASSED}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    return x ? 0 : ku_b(\n        (x));\n}\n", "src/a.h": PASSED}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    int s = ku_b(x);\n    f();\n    return s < 0 ? s : 1;\n}\n", "src/a.h": PASSED}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    int n = 0, s = x ? ku_b(x) : 0;\n    f(n);\n    return s;\n}\n", "src/a.h": PASSED}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "static int f(int x)\n{\n    return ku_b(x);\n}\nint ku_a(int x)\n{\n    return f(x);\n}\n", "src/a.h": PASSED}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    int s;\n    if ((s = ku_b(x)) < 0)\n        return s;\n}\n", "src/a.h": PASSED}, "src/a.h:2: ku_a can fail"),
    ({"src/a.c": "int ku_a(int x)\n{\n    return ku_b(x) < 0;\n}\n", "src/a.h": PASSED}, None),
    ({"src/a.h": "static inline int f(int x)\n{\n    return KU_ERR(x);\n}\n"}, "src/a.h:1: f can fail"),
]
