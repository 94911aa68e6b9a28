# SPDX-License-Identifier: Apache-2.0
"""What every file begins with, and what none contains."""
import re

from run import line_of

SPDX = "SPDX-License-Identifier: Apache-2.0"
C_FIRST = f"/* {SPDX} */"
NEVER = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b"), "finish it, or leave it out"),
    (re.compile(r"-ffast-" r"math|-Of" r"ast|-march=" r"native"), "bits must not depend on the compiler's mood"),
    (re.compile(r"[ \t]+$", re.M), "blanks at the end of a line"),
    (re.compile(r"/ho" r"me/|/wo" r"rk/|/Us" r"ers/"), "a path of one machine"),
]


def check(tree):
    for path, text in sorted(tree.items()):
        lines = (text + "\n\n").split("\n")
        is_c = path.endswith((".c", ".h", ".def"))
        first = lines[1] if lines[0].startswith("#!") else lines[0]
        if path.endswith((".in", ".map", ".supp", ".md", ".txt", ".json")) and not path.endswith("CMakeLists.txt"):
            pass
        elif (first != C_FIRST) if is_c else (SPDX not in first):
            yield f"{path}:1: begins with {C_FIRST if is_c else '# ' + SPDX}"
        if text and not text.endswith("\n"):
            yield f"{path}:{line_of(text, len(text))}: no newline at the end"
        if is_c and "\t" in text:
            yield f"{path}:{line_of(text, text.index(chr(9)))}: a tab"
        for pattern, reason in NEVER:
            match = pattern.search(text)
            if match:
                yield f"{path}:{line_of(text, match.start())}: {match.group(0).strip()}: {reason}"
        if path.startswith("src/") and path.endswith(".h"):
            guard = "KU_" + re.sub(r"[/.-]", "_", path[len("src/"):]).upper()
            found = re.search(r"^#ifndef (\w+)\n#define \1\n", text, re.M)
            if found and found.group(1) != guard: # a body that is included several times has none
                yield f"{path}: include guard {found.group(1)}; it is {guard}"


EXAMPLES = [
    ({"src/a/b.c": C_FIRST + "\nint x;\n"}, None),
    ({"src/a/b.h": C_FIRST + "\n#ifndef KU_A_B_H\n#define KU_A_B_H\n#endif\n"}, None),
    ({"tools/a.sh": "#!/bin/sh\n# " + SPDX + "\n"}, None),
    ({"src/a/b.c": "int x;\n"}, "src/a/b.c:1: begins with /* SPDX"),
    ({"tools/a.sh": "#!/bin/sh\nx\n"}, "tools/a.sh:1: begins with # SPDX"),
    ({"src/a/b.h": C_FIRST + "\n#ifndef KU_B_H\n#define KU_B_H\n#endif\n"}, "include guard KU_B_H; it is KU_A_B_H"),
    ({"src/a/b.c": C_FIRST + "\n\n/* TO" "DO: more */\n"}, "src/a/b.c:3: TO" "DO"),
    ({"src/a/b.c": C_FIRST + "\nint x; \n"}, "src/a/b.c:2: : blanks"),
    ({"src/a/b.c": C_FIRST + "\nint x;"}, "no newline"),
    ({"src/a/b.c": C_FIRST + "\n\tint x;\n"}, "src/a/b.c:2: a tab"),
    ({"CMakeLists.txt": "# " + SPDX + "\nadd_compile_options(-Of" "ast)\n"}, "compiler's mood"),
]
