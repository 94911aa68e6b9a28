#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws curves of runs as SVG (standard library only).

    curve.py OUT.svg NAME=RUN ...                                       loss over steps
    curve.py --x epoch --panels loss,accuracy OUT.svg NAME=RUN ...      loss and accuracy over epochs, side by side

RUN is the folder of a run of kumi or of bench/pytorch_*.py, or a file of lines of its metrics.jsonl. Thin lines are training (over epochs: the
mean of an epoch's lines), thick ones validation; those of the second run are dashed. --difference adds a panel below with the validation of
the first run minus that of each other run. --save DIR writes the points that are drawn as DIR/STEM-NAME.jsonl, from which the same picture can be drawn.
"""
import argparse
import html
import json
import math
import os
import statistics

WIDTH, LEFT, RIGHT, PLOT, DIFFERENCE, ROW = 900, 74, 28, 300, 108, 23
COLOURS, DASHES = ["#1f5fa8", "#c2571a", "#2f7d4f", "#7a3fa0"], ["", "8 5", "2 4", "10 4 2 4"]
TITLES = {"loss": "loss", "bleu": "BLEU", "accuracy": "accuracy", "top5": "top-5 accuracy"}
DIGITS = {"bleu": 1}


def read(run, key, x):
    """Points of training and of validation."""
    train, val = [], []
    for line in open(os.path.join(run, "metrics.jsonl") if os.path.isdir(run) else run):
        row = json.loads(line)
        if key == "bleu":
            row.setdefault("val_bleu", row.pop("bleu", None))
        for points, name in (train, key), (val, "val_" + key):
            if row.get(name) is not None and row.get(x) is not None:
                points.append((row[x], row[name]))
    if x == "epoch":
        by_epoch = {}
        for at, value in train:
            by_epoch.setdefault(math.ceil(at - 1e-9), []).append(value)
        train = [(epoch, statistics.mean(values)) for epoch, values in sorted(by_epoch.items())]
    return train, val


def ticks(low, high, n=6):
    """The least step of 1, 2 or 5 times a power of ten of which there are at most n."""
    power = 10.0 ** (math.floor(math.log10(max(high - low, 1e-9))) - 1)
    return next(step for step in (power * f for f in (1, 2, 5, 10, 20, 50, 100)) if (high - low) / step <= n)


def label(value, step):
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def text(x, y, s, anchor="start", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(s)}</text>'


class Axes:
    """A rectangle, the values that it spans, and what is drawn on it."""

    def __init__(self, left, top, width, height, end, low, high, is_log):
        self.left, self.top, self.width, self.height, self.end, self.is_log = left, top, width, height, end, is_log
        self.low, self.high, self.f = low, high, math.log if is_log else float

    def x(self, at):
        return self.left + self.width * at / self.end

    def y(self, value):
        return self.top + self.height * (self.f(self.high) - self.f(value)) / ((self.f(self.high) - self.f(self.low)) or 1)

    def frame(self, unit, x_name, marks, step):
        out = [f'<rect x="{self.left:.1f}" y="{self.top:.1f}" width="{self.width:.1f}" height="{self.height:.1f}" fill="none" stroke="#888"/>']
        for value in marks:
            y = self.y(value)
            out.append(f'<path d="M{self.left:.1f} {y:.1f}h{self.width:.1f}" stroke="#ddd"/>')
            out.append(text(self.left - 7, y + 5, label(value, step), "end"))
        at = self.left - 52, self.top + self.height / 2
        out.append(text(*at, unit, "middle", f' transform="rotate(-90 {at[0]:.1f} {at[1]:.1f})"'))
        every = max(1, ticks(0, self.end))
        for k in range(int(self.end / every) + 1):
            x = self.x(k * every)
            out.append(f'<path d="M{x:.1f} {self.top + self.height:.1f}v5" stroke="#888"/>')
            if x_name:
                out.append(text(x, self.top + self.height + 20, label(k * every, 1), "middle"))
        if x_name:
            out.append(text(self.left + self.width / 2, self.top + self.height + 41, x_name, "middle"))
        return out

    def line(self, points, i, width, opacity=1.0, dash="", dots=False):
        if not points:
            return []
        at = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        faint = f' stroke-opacity="{opacity}"' if opacity < 1 else ""
        out = [f'<polyline fill="none" stroke="{COLOURS[i]}" stroke-width="{width}"{faint}{dashed} points="{at}"/>']
        if dots:
            out += [f'<circle cx="{self.x(a):.1f}" cy="{self.y(b):.1f}" r="3.2" fill="{COLOURS[i]}"/>' for a, b in points]
        return out


def main_axes(left, top, width, points, end, is_log, reference):
    """Spans all points and the reference; and the marks of the axis, and the step between them."""
    values = [v for _, v in points] + reference
    if is_log:
        low, high = min(values) * 0.96, max(values) * 1.04
        marks = [m * 10.0 ** k for k in range(-4, 5) for m in (1, 1.5, 2, 3, 4, 5, 7) if low <= m * 10.0 ** k <= high]
        return Axes(left, top, width, PLOT, end, low, high, True), marks, 0.1
    step = ticks(min(values), max(values))
    low, high = math.floor(min(values) / step + 1e-9) * step, math.ceil(max(values) / step - 1e-9) * step
    marks = [low + i * step for i in range(round((high - low) / step) + 1)]
    return Axes(left, top, width, PLOT, end, low, high, False), marks, step


def draw_panel(left, top, width, key, curves, a):
    unit = dict(u.split("=", 1) for u in a.unit).get(key, TITLES.get(key, key))
    points = [p for _, train, val in curves for p in train + val]
    if not points:
        raise SystemExit(f"no line has {key} and {a.x}")
    reference = [float(r.rsplit("=", 1)[1]) for r in a.reference] if key == "loss" else []
    axes, marks, step = main_axes(left, top, width, points, max(p[0] for p in points), a.log and key == "loss", reference)
    out = axes.frame(unit, None if a.difference else a.x, marks, step)
    for i, (_, train, _) in enumerate(curves):
        out += axes.line(train, i, 1, 0.55)
    for i, (_, _, val) in enumerate(curves):
        out += axes.line(val, i, 2.4, dash=DASHES[i], dots=True)
    for value in reference:
        out.append(f'<path d="M{left} {axes.y(value):.1f}h{width:.1f}" stroke="#333" stroke-dasharray="2 3"/>')
    if not a.difference:
        return out
    first = dict(curves[0][2])
    below = [[(at, first[at] - v) for at, v in val if at in first] for _, _, val in curves[1:]]
    most = max([abs(v) for points in below for _, v in points] + [1e-9])
    step = ticks(0, most, 2)
    high = math.ceil(most / step - 1e-9) * step
    under = Axes(left, top + PLOT + 26, width, DIFFERENCE, axes.end, -high, high, False)
    out += under.frame(f"{curves[0][0]} \u2212 " + (curves[1][0] if len(curves) == 2 else "others"), a.x, [-high, 0, high], step)
    out.append(f'<path d="M{left} {under.y(0):.1f}h{width:.1f}" stroke="#333"/>')
    for i, points in enumerate(below):
        out += under.line(points, i + 1, 2, dots=True)
    return out


def legend(panels, a):
    """A sample of each run's line with its last validation figures, then what is drawn. Returns the rows, and their height."""
    out, y = [], 6
    for i, (name, _, _) in enumerate(panels[0][1]):
        last = [(TITLES.get(key, key), f"{curves[i][2][-1][1]:.{DIGITS.get(key, 3)}f}") for key, curves in panels if curves[i][2]]
        figures = ", ".join(v if len(last) == 1 else f"{k} {v}" for k, v in last)
        dash = f' stroke-dasharray="{DASHES[i]}"' if DASHES[i] else ""
        y += ROW
        out.append(f'<path d="M{LEFT} {y - 5}h46" stroke="{COLOURS[i]}" stroke-width="2.4"{dash}/>')
        out.append(text(LEFT + 56, y, f"{name}: {figures}" if figures else name))
    for row in a.reference:
        y += ROW
        out.append(f'<path d="M{LEFT} {y - 5}h46" stroke="#333" stroke-dasharray="2 3"/>')
        out.append(text(LEFT + 56, y, ": ".join(row.rsplit("=", 1))))
    for row in [f"thick: {a.val_label}; thin: {a.train_label}"] * any(t for _, c in panels for _, t, _ in c) + a.note:
        y += ROW
        out.append(text(LEFT, y, row, more=' fill="#555"'))
    return out, y + 18


def save(folder, out, runs, keys, x):
    for name, run in runs:
        rows = {}
        for key in keys:
            for points, column in zip(read(run, key, x), (key, "val_" + key)):
                for at, value in points:
                    rows.setdefault(at, {x: at})[column] = round(value, 4)
        stem = os.path.splitext(os.path.basename(out))[0] + "-" + "".join(c if c.isalnum() else "-" for c in name.lower())
        with open(os.path.join(folder, stem + ".jsonl"), "w") as f:
            f.writelines(json.dumps(rows[at], separators=(",", ":")) + "\n" for at in sorted(rows))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", metavar="OUT.svg")
    p.add_argument("runs", nargs="+", metavar="NAME=RUN")
    p.add_argument("--x", choices=["step", "epoch"], default="step")
    p.add_argument("--panels", default="loss", help="keys of metrics.jsonl, separated by commas (default: loss)")
    p.add_argument("--unit", action="append", default=[], metavar="KEY=TEXT", help="the label of a panel's axis")
    p.add_argument("--log", action="store_true", help="a logarithmic axis for the loss")
    p.add_argument("--difference", action="store_true", help="below: validation of the first run minus that of the others")
    p.add_argument("--reference", action="append", default=[], metavar="TEXT=VALUE", help="a line across the panel of the loss")
    p.add_argument("--train-label", default="training", metavar="TEXT")
    p.add_argument("--val-label", default="validation", metavar="TEXT")
    p.add_argument("--note", action="append", default=[], metavar="TEXT", help="a line of the legend")
    p.add_argument("--save", metavar="DIR", help="write the drawn points there, too")
    a = p.parse_args()
    keys, runs = a.panels.split(","), [r.split("=", 1) for r in a.runs]
    width = (WIDTH - len(keys) * LEFT - RIGHT - (len(keys) - 1) * 14) / len(keys)
    panels = [(key, [(name, *read(run, key, a.x)) for name, run in runs]) for key in keys]
    head, top = legend(panels, a)
    height = top + PLOT + (DIFFERENCE + 26) * a.difference + 52
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="Helvetica,Arial,sans-serif" font-size="15">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *head]
    for i, (key, curves) in enumerate(panels):
        out += draw_panel(LEFT + i * (width + LEFT + 14), top, width, key, curves, a)
    with open(a.out, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")
    if a.save:
        save(a.save, a.out, runs, keys, a.x)


if __name__ == "__main__":
    main()
