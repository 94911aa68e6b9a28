# SPDX-License-Identifier: Apache-2.0
"""A file stays under 1,000 lines, a function under 70, a line within 100 columns (a table's row may be longer)."""
from run import blank_out

FILE_LINES, FUNCTION_LINES, COLUMNS = 1000, 70, 100


def functions(text):
    """(first line, lines) of each body whose braces stand in column 0."""
    begin = None
    for number, line in enumerate(blank_out(text).split("\n"), 1):
        if line.rstrip() == "{":
            begin = number
        elif line.startswith("}") and begin is not None:
            yield begin, number - begin + 1
            begin = None


def check(tree):
    for path, text in tree.c_files():
        lines = text.rstrip("\n").split("\n")
        if len(lines) >= FILE_LINES:
            yield f"{path}: {len(lines)} lines; two ideas, so two files (fewer than {FILE_LINES})"
        for first, count in functions(text):
            if count >= FUNCTION_LINES:
                yield f"{path}:{first}: a function of {count} lines; fewer than {FUNCTION_LINES}"
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS and not path.endswith(".def"):
                yield f"{path}:{number}: {len(line)} columns; at most {COLUMNS}"


def body(lines):
    return "int f(void)\n{\n" + "    x++;\n" * (lines - 2) + "}\n"


EXAMPLES = [
    ({"src/a.c": body(69) + body(69)}, None),
    ({"src/a.c": "x;\n" * 999}, None),
    ({"src/a.c": "struct a {\n" + "int x;\n" * 80 + "};\n"}, None),
    ({"src/a.c": body(3) + body(70)}, "src/a.c:6: a function of 70 lines"),
    ({"src/a.c": "x;\n" * 1000}, "1000 lines"),
    ({"src/a.h": "/*" + "x" * 99 + "*/\n"}, "src/a.h:1: 103 columns"),
    ({"src/a.h": "/*" + "\u00fc" * 96 + "*/\n"}, None),
]
