# SPDX-License-Identifier: Apache-2.0
"""Calls that have one home, and calls that have none."""
import re

from run import blank_out, line_of

# (names, homes, what to do instead)
RULES = [
    ("malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf posix_memalign aligned_alloc memalign",
     ["src/base/mem.c"], "use base/mem.h"),
    ("open openat creat close read pread readv write pwrite writev fsync fdatasync ftruncate fallocate posix_fallocate "
     "stat fstat lstat mkdir rmdir rename renameat2 unlink opendir readdir closedir flock mmap munmap mprotect memfd_create "
     "socket bind listen accept accept4 connect send sendmsg recv recvmsg fopen fdopen fread fwrite fclose fgets",
     ["src/base/os/os.c", "src/base/os/ipc.c", "src/base/os/limits.c", "src/base/os/socket.c",
      "src/base/os/stream.c", "src/base/os/temporary.c"],
     "use base/os/os.h, base/os/ipc.h or base/os/socket.h"),
    ("getenv secure_getenv", ["src/base/env.c"], "use base/env.h"),
    ("exit _exit _Exit quick_exit abort", ["src/base/err.c", "src/cli/"], "return a status, or KU_ASSERT"),
    ("printf vprintf puts putchar fputs fputc putc fprintf vfprintf dprintf vdprintf perror", ["src/cli/"],
     "the library prints nothing: use base/log.h"),
    ("strtod strtof strtold", ["src/base/str.c"], "it reads the locale's decimal comma: use ku_text_number"),
    ("pthread_cond_timedwait pthread_condattr_setclock", ["src/base/cond.h"],
     "use base/cond.h, whose deadlines do not follow the wall clock"),
    ("strcpy stpcpy strcat strncat strncpy sprintf vsprintf gets atoi atol atoll atof strtok rand srand random "
     "tmpnam tempnam mktemp system popen alloca", [], "it is unsafe, or depends on hidden state"),
]

# Where a rule would be wrong. Each line has its reason.
ALLOWED = {
    ("src/base/log.c", "write"): "a message is one write, and not failed on purpose",
    ("src/cli/terminal.c", "write"): "likewise",
    ("src/cli/cli.c", "fwrite"): "standard output; a failure is the command's",
    ("src/job/launch/launch.c", "socket"): "asks for a free port; a failure has an answer",
    ("src/job/launch/launch.c", "bind"): "likewise",
    ("src/job/launch/ranks.c", "exit"): "the end of a forked rank",
    ("src/job/launch/ranks.c", "_exit"): "the end of a forked process that never became a rank",
    ("src/job/launch/shell.c", "_exit"): "the end of a forked process that never became an agent",
    ("src/comm/mpi/table_plugin.c", "_exit"): "MPI's end has a deadline, inside exit()",
    ("src/comm/mpi/table_plugin.c", "read"): "a plug-in uses nothing of libkumi; hydra's socket, with a deadline",
    ("src/comm/mpi/table_plugin.c", "write"): "likewise",
    ("src/job/service_thread.c", "_exit"): "the second signal stops a process at once",
}

CALL = re.compile(r"(?<![\w.>])(" + "|".join(n for names, _, _ in RULES for n in names.split()) + r")[ \t]*\(")
OUTPUT = re.compile(r"\b(stdout|STDOUT_FILENO|STDERR_FILENO)\b|\bwrite\w*[ \t]*\([ \t]*[12][ \t]*,")
TERMINAL = ("src/cli/", "src/base/log.c")
RULE_OF = {name: rule for rule in RULES for name in rule[0].split()}


def check(tree):
    for path, text in tree.c_files("src/"):
        code = blank_out(text)
        for match in CALL.finditer(code):
            name = match.group(1)
            _, homes, hint = RULE_OF[name]
            if not path.startswith(tuple(homes)) and (path, name) not in ALLOWED:
                yield f"{path}:{line_of(code, match.start())}: {name}(): {hint}"
        for match in re.finditer(r"\bstderr\b", code):
            yield f"{path}:{line_of(code, match.start())}: stderr: use base/log.h, which erases the progress line first"
        for match in () if path.startswith(TERMINAL) else OUTPUT.finditer(code):
            yield f"{path}:{line_of(code, match.start())}: {match.group(0)}: only the command writes to its standard files"
    for path, name in ALLOWED if tree.build else ():
        if not re.search(rf"\b{name}[ \t]*\(", blank_out(tree.get(path, ""))):
            yield f"tests/tidy/check_calls.py: {path} no longer calls {name}(); drop its line"


EXAMPLES = [
    ({"src/base/mem.c": "p = malloc(3);"}, None),
    ({"src/base/env.c": "p = getenv(name);"}, None),
    ({"src/cli/main.c": "p = getenv(name);"}, "use base/env.h"),
    ({"src/ir/a.c": "p = malloc(3);"}, "src/ir/a.c:1: malloc(): use base/mem.h"),
    ({"src/ir/a.c": "p = ku_malloc(3); ops->open(x); t.read (y); /* free(p) */ s = \"exit(1)\";"}, None),
    ({"src/comm/a.c": "\n\nn = read (fd, p, 3);"}, "src/comm/a.c:3: read()"),
    ({"src/base/os/os.c": "n = read(fd, p, 3);"}, None),
    ({"src/base/log.c": "write(STDERR_FILENO, p, 3);"}, None),
    ({"src/cli/terminal.c": "write(STDERR_FILENO, p, 3);"}, None),
    ({"src/cli/cmd_a.c": "printf(a);"}, None),
    ({"src/plan/a.c": "printf(a);"}, "src/plan/a.c:1: printf(): the library prints nothing"),
    ({"src/plan/a.c": "snprintf(a, 3, b); p->printf(a);"}, None),
    ({"src/plan/a.c": "f = stdout;"}, "src/plan/a.c:1: stdout: only the command"),
    ({"src/base/os/os.c": "n = write(2, p, 3);"}, "src/base/os/os.c:1: write(2,: only the command"),
    ({"src/base/str.c": "strcpy(a, b);"}, "strcpy()"),
    ({"src/cli/a.c": "fputs(a, stderr);"}, "src/cli/a.c:1: stderr: use base/log.h"),
    ({"src/op/a.c": "x = strtod(p, &end);"}, "src/op/a.c:1: strtod(): it reads the locale's decimal comma"),
    ({"src/base/str.c": "x = strtod(p, &end);"}, None),
    ({"src/cli/main.c": "exit(1);"}, None),
    ({"src/train/run.c": "exit(1);"}, "return a status"),
    ({"tests/unit/test_a.c": "strcpy(a, b);"}, None),
]
