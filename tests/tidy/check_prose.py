# SPDX-License-Identifier: Apache-2.0
"""Words that comments, messages and documents do not use: ranks, tensors and files are things, not persons."""
import glob
import os
import re

from run import line_of

PERSONS = r"whom|whoever|(?:no|some|any|every)body|someone|anyone|everyone|theirs"
IN_C = re.compile(rf"\b(?:who|{PERSONS})\b", re.I)
IN_PAGES = re.compile(rf"\b(?:{PERSONS})\b", re.I) # "who" may be a reader or an engineer
PROSE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
CODE = re.compile(r"^```.*?^```|^    [^\n]*|`[^`\n]*`", re.S | re.M)


def pages(tree):
    names = [p for p in tree if p.endswith((".md", ".1"))]
    for path in sorted(names):
        yield path, tree[path]
    if tree.source:
        for top in ("README.md", "docs/*.md", "docs/*/*.md", "docs/*.1"):
            for path in sorted(glob.glob(os.path.join(tree.source, top))):
                with open(path, encoding="utf-8") as f:
                    yield os.path.relpath(path, tree.source), f.read()


def check(tree):
    for path, text in tree.c_files("src", "include", "tests", "bench"):
        for prose in PROSE.finditer(text):
            for word in IN_C.finditer(prose.group(0)):
                yield f"{path}:{line_of(text, prose.start() + word.start())}: \"{word.group(0)}\": name the rank, tensor or file"
    for path, text in pages(tree):
        for word in IN_PAGES.finditer(CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), text)):
            yield f"{path}:{line_of(text, word.start())}: \"{word.group(0)}\": name the rank, tensor or file"


EXAMPLES = [
    ({"src/a/b.c": "/* The rank that failed, whose line is 2. */\nstruct ucred who;\n"}, None),
    ({"docs/a.md": "For engineers who train.\n\n    nobody in a sample\n"}, None),
    ({"src/a/b.c": "\n/* Nobody waits. */\n"}, 'src/a/b.c:2: "Nobody"'),
    ({"src/a/b.c": 'f("a rank who waits");\n'}, 'src/a/b.c:1: "who"'),
    ({"docs/a.md": "one\n\ngive theirs\n"}, 'docs/a.md:3: "theirs"'),
]
