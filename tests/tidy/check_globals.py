# SPDX-License-Identifier: Apache-2.0
"""All state hangs on a context: objects that can change while the program runs are listed here, with the reason."""
import glob
import os
import re
import subprocess

from run import Skip

ALLOWED = {
    ("err.c", "last"): "the thread's error record",
    ("err.c", "rank_of_thread"): "the rank that records of this thread carry",
    ("tick.c", "ku_ticker"): "what the thread's long work calls",
    ("fault.c", "once"): "KUMI_FAULT is read once",
    ("fault.c", "armed"): "the fault that KUMI_FAULT asks for",
    ("fault.c", "calls_left"): "the countdown to it",
    ("str.c", "once"): "the C locale is created once",
    ("str.c", "c_locale"): "constant after that",
    ("log.c", "once"): "KUMI_LOG is read once",
    ("log.c", "level_of"): "constant after that",
    ("log.c", "messages"): "the program's callbacks, set before other threads exist",
    ("cpu_features.c", "brand"): "the CPU's name, per thread",
    ("caches.c", "once"): "the topology is read once",
    ("caches.c", "found"): "constant after that",
    ("runtime.c", "handshakes"): "what gRPC's log says about failed handshakes, without a context",
    ("gemm_amx.c", "amx_configured"): "the thread's matrix tiles: the rows they are configured for",
}

# "0000000000000000 l     O .bss   0000000000000004 name": what can be written, thread-local or not. Constants with
# addresses in them lie in .data.rel.ro.
OBJECT = re.compile(r"^[0-9a-f]+ (.{7}) (\.(?:data|bss|tdata|tbss)\S*|\*COM\*)\s+([0-9a-f]+) (?:\.hidden )?(\S+)$")
MEMBER = re.compile(r"^(\S+)\.o:\s+file format")


def objects(listing):
    member = "?"
    for line in listing.split("\n"):
        if match := MEMBER.match(line):
            member = match.group(1)
        elif match := OBJECT.match(line):
            kind, section, bytes_, name = match.groups()
            if not section.startswith(".data.rel.ro") and name != section and int(bytes_, 16) > 0:
                yield member, re.sub(r"\.\d+$", "", name)


def listings(tree):
    if tree.build is None:
        return [("libku_x.a", tree["listing"])]
    libraries = sorted(glob.glob(os.path.join(tree.build, "libku_*.a")))
    if not libraries:
        raise Skip("no library is built")
    found = [(os.path.basename(l), subprocess.run(["objdump", "-t", l], check=True, text=True,
                                                  stdout=subprocess.PIPE).stdout) for l in libraries]
    if any(re.search(r"__(asan|tsan|ubsan)_", text) for _, text in found):
        raise Skip("sanitizers add objects of their own")
    return found


def check(tree):
    for library, listing in listings(tree):
        for member, name in objects(listing):
            if (member, name) not in ALLOWED:
                yield f"{library}: {member}: {name}: can change while the program runs; hang it on a context, " \
                      "or make it const (the pointers in it, too)"


def line(section, name, kind="l     O"):
    return {"listing": f"a.c.o:     file format elf64-x86-64\n0000000000000000 {kind} {section}\t0000000000000004 {name}\n"}


EXAMPLES = [
    (line(".bss", "counter"), "libku_x.a: a.c: counter: can change"),
    (line(".data", "table.3"), "a.c: table:"),
    (line(".tbss", "state"), "a.c: state:"),
    (line(".data.rel.local", "names"), "a.c: names:"),
    (line("*COM*", "common", "g     O"), "a.c: common:"),
    (line(".bss", ".hidden state", "g     O"), "a.c: state:"),
    (line(".data.rel.ro.local", "names"), None),
    (line(".rodata", "names"), None),
    ({"listing": line(".tbss", "last")["listing"].replace("a.c", "err.c")}, None),
]
