#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws curves of runs as SVG, from RUN/metrics.jsonl (standard library only).

    curve.py OUT.svg NAME=RUN ...                                       loss over steps
    curve.py --x epoch --panels loss,accuracy OUT.svg NAME=RUN ...      loss and accuracy over epochs, side by side

Thin lines are training (over epochs: the mean of an epoch's lines), thick ones validation. A run is one of kumi's, or of bench/pytorch_*.py.
"""
import argparse
import json
import math
import statistics

H, L, T, B = 360, 56, 28, 44
COLOURS = ["#1f5fa8", "#c2571a", "#2f7d4f", "#7a3fa0"]
TITLES = {"loss": "loss", "bleu": "BLEU", "accuracy": "accuracy", "top5": "top-5 accuracy"}


def read(run, key, x):
    """Points of training and of validation."""
    train, val = [], []
    for line in open(run + "/metrics.jsonl"):
        row = json.loads(line)
        for points, name in (train, key), (val, "val_" + key):
            if row.get(name) is not None and row.get(x) is not None:
                points.append((row[x], row[name]))
    if x == "epoch":
        by_epoch = {}
        for at, value in train:
            by_epoch.setdefault(math.ceil(at - 1e-9), []).append(value)
        train = [(epoch, statistics.mean(values)) for epoch, values in sorted(by_epoch.items())]
    return train, val


def ticks(low, high):
    """The least step of 1, 2 or 5 times a power of ten of which there are at most seven."""
    power = 10.0 ** (math.floor(math.log10(max(high - low, 1e-9))) - 1)
    return next(step for step in (power * f for f in (1, 2, 5, 10, 20, 50)) if (high - low) / step <= 6)


def panel(left, width, key, curves, x, unit):
    """One plot with its axes; curves: (name, training, validation)."""
    points = [p for _, train, val in curves for p in train + val]
    if not points:
        raise SystemExit(f"no line has {key} and {x}")
    end = max(p[0] for p in points)
    step = ticks(min(p[1] for p in points), max(p[1] for p in points))
    low, high = (f(g(p[1] for p in points) / step) * step for f, g in ((math.floor, min), (math.ceil, max)))
    px, py = (lambda s: left + width * s / end), (lambda v: T + (H - T - B) * (high - v) / ((high - low) or 1))
    out = []
    for i in range(round((high - low) / step) + 1):
        y = low + i * step
        out.append(f'<path d="M{left} {py(y):.1f}H{left + width}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:.{max(1, -math.floor(math.log10(step)))}f}</text>')
    every = max(1, ticks(0, end))
    for k in range(int(end / every) + 1):
        out.append(f'<text x="{px(k * every):.1f}" y="{H - B + 18}" text-anchor="middle">{k * every:.0f}</text>')
    out.append(f'<text x="{left + width / 2:.0f}" y="{H - 8}" text-anchor="middle">{x}</text>')
    out.append(f'<text x="{left}" y="{T - 10}">{unit or TITLES.get(key, key)}</text>')
    line = lambda points: " ".join(f"{px(a):.1f},{py(b):.1f}" for a, b in points)
    for i, (name, train, val) in enumerate(curves):
        c = COLOURS[i % len(COLOURS)]
        out.append(f'<polyline fill="none" stroke="{c}" stroke-opacity="0.4" points="{line(train)}"/>')
        out.append(f'<polyline fill="none" stroke="{c}" stroke-width="2" points="{line(val)}"/>')
        if val:
            out.append(f'<circle cx="{px(val[-1][0]):.1f}" cy="{py(val[-1][1]):.1f}" r="3" fill="{c}"/>')
    return out


def legend(at, panels, names):
    """Names with the last validation figures."""
    out = []
    for i, name in enumerate(names):
        last = ", ".join(f"{curves[i][2][-1][1]:.3f}" for _, curves in panels if curves[i][2])
        out.append(f'<text x="{at}" y="{T + 16 + 18 * i}" fill="{COLOURS[i % len(COLOURS)]}">{name}: {last}</text>')
    y = T + 16 + 18 * len(names) + 8
    return out + [f'<text x="{at}" y="{y}" fill="#666">thin: training</text><text x="{at}" y="{y + 16}" fill="#666">thick: validation</text>']


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", metavar="OUT.svg")
    p.add_argument("runs", nargs="+", metavar="NAME=RUN")
    p.add_argument("--x", choices=["step", "epoch"], default="step")
    p.add_argument("--panels", default="loss", help="keys of metrics.jsonl, separated by commas (default: loss)")
    p.add_argument("--unit", help="the title of the first panel")
    a = p.parse_args()
    keys, width = a.panels.split(","), 514 if "," not in a.panels else 380
    runs = [r.split("=", 1) for r in a.runs]
    panels = [(key, [(name, *read(run, key, a.x)) for name, run in runs]) for key in keys]
    total = len(keys) * (width + L) + 220
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {H}" font-family="Helvetica,Arial,sans-serif" font-size="12">',
           f'<rect width="{total}" height="{H}" fill="white"/>']
    for i, (key, curves) in enumerate(panels):
        out += panel(L + i * (width + L), width, key, curves, a.x, a.unit if i == 0 else None)
    out += legend(len(keys) * (width + L) + 14, panels, [name for name, _ in runs])
    with open(a.out, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
