# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows of a training run: runs `kumi train` on a pseudo-terminal and renders what it wrote."""
import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import tempfile
import termios


class Screen:
    """Rows without end. Knows carriage return, line feed, erase to the end of the row, and deferred wrapping (xterm's:
    a character in the last column leaves the cursor on it, and the next one begins a row)."""

    def __init__(self, columns):
        self.columns, self.rows, self.is_wrapped, self.at, self.is_full = columns, [[]], [False], 0, False

    def feed(self, text):
        for part in re.finditer(r"\x1b\[K|\r|\n|\x1b|[^\x1b\r\n]", text):
            part, row = part.group(), self.rows[-1]
            if part == "\x1b[K":
                del row[self.at:]
            elif part == "\r":
                self.at, self.is_full = 0, False
            elif part == "\n":
                self.add_row(False, self.at)
            elif part == "\x1b":
                raise SystemExit("an escape sequence that the test does not know")
            else:
                self.put(part)

    def add_row(self, is_wrapped, at):
        self.rows.append([])
        self.is_wrapped.append(is_wrapped)
        self.at, self.is_full = at, False

    def put(self, character):
        if self.is_full:
            self.add_row(True, 0)
        row = self.rows[-1]
        row.extend(" " * (self.at + 1 - len(row)))
        row[self.at] = character
        self.is_full = self.at + 1 == self.columns
        self.at += not self.is_full

    def lines(self):
        """Rows that wrapping separated are one line."""
        lines = []
        for row, is_wrapped in zip(self.rows, self.is_wrapped):
            if is_wrapped:
                lines[-1] += "".join(row)
            else:
                lines.append("".join(row))
        return [line.rstrip() for line in lines]


def run(command, columns, environment):
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execvpe(command[0], command, {**os.environ, **environment})
    screen, raw = Screen(columns), ""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        raw += data.decode()
        screen.feed(data.decode())
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.lines(), raw.count("step 5/6  loss")


WHOLE = [r"kumi: \S.*", r"kumi(\[\d+\])? \w+ (info|debug|warn): .*", r"step \d+  validation loss \d+\.\d{4}",
         r"\d+ steps, \d+ updates.*", r" +step  validation loss", r" +\d+ +\d+\.\d{4}", r"(checkpoint|digest): \S+",
         r"validation loss: \d+\.\d{4}", r""]


def main():
    kumi, source = sys.argv[1:]
    failures = 0
    folder = tempfile.mkdtemp()
    os.chdir(source)
    for columns, ranks, log in ((80, 1, "warn"), (80, 2, "debug"), (40, 2, "debug"), (20, 1, "warn"), (20, 2, "debug")):
        command = [kumi, "train", "configs/shakespeare-fast.json", "-n", str(ranks), "--out", f"{folder}/{columns}.{ranks}"]
        for setting in ("train.steps=6", "train.log_every=1", "train.eval_every=2", "train.eval_tokens=512", "model.n_layer=1",
                        "train.global_batch=4", "checkpoint.every=3"):
            command += ["--set", setting]
        code, lines, n_drawn = run(command, columns, {"TERM": "xterm", "KUMI_LOG": log})
        bad = [line for line in lines if not any(re.fullmatch(whole, line) for whole in WHOLE)]
        n_validations = sum("  validation loss " in line and line.startswith("step") for line in lines)
        if code or bad or n_validations != 3 or n_drawn != 1:
            failures += 1
            print(f"{columns} columns, {ranks} ranks: exit {code}, {n_validations} validation lines, step 5 drawn {n_drawn} times, lines that are not whole: {bad}")
    shutil.rmtree(folder)
    return failures


sys.exit(1 if main() else 0)
