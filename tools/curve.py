#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the loss curve of runs as SVG: curve.py OUT.svg NAME=RUN_DIR ... (standard library only)."""
import json
import sys

W, H, L, R, T, B = 760, 360, 56, 190, 24, 44
COLOURS = ["#1f5fa8", "#c2571a", "#2f7d4f", "#7a3fa0"]


def read(run):
    train, val = [], []
    for line in open(run + "/metrics.jsonl"):
        row = json.loads(line)
        if row.get("loss") is not None:
            train.append((row["step"], row["loss"]))
        if row.get("val_loss") is not None:
            val.append((row["step"], row["val_loss"]))
    return train, val


def main(out, runs):
    curves = [(name, *read(path)) for name, path in (r.split("=", 1) for r in runs)]
    points = [p for _, t, v in curves for p in t + v]
    x1 = max(p[0] for p in points)
    y0, y1 = int(min(p[1] for p in points) * 2) / 2, min(4.0, max(p[1] for p in points))
    px = lambda s: L + (W - L - R) * s / x1
    py = lambda v: T + (H - T - B) * (y1 - min(v, y1)) / (y1 - y0)
    s = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="Helvetica,Arial,sans-serif" font-size="12">',
         f'<rect width="{W}" height="{H}" fill="white"/>']
    y = y0
    while y <= y1 + 1e-9:
        s.append(f'<path d="M{L} {py(y):.1f}H{W - R}" stroke="#ddd"/><text x="{L - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:.1f}</text>')
        y += 0.5
    for k in range(5):
        x = x1 * k / 4
        s.append(f'<text x="{px(x):.1f}" y="{H - B + 18}" text-anchor="middle">{x:.0f}</text>')
    s.append(f'<text x="{(L + W - R) / 2:.0f}" y="{H - 8}" text-anchor="middle">step</text>')
    s.append(f'<text x="14" y="{H / 2:.0f}" transform="rotate(-90 14 {H / 2:.0f})" text-anchor="middle">nats per character</text>')
    for i, (name, train, val) in enumerate(curves):
        c = COLOURS[i % len(COLOURS)]
        s.append(f'<polyline fill="none" stroke="{c}" stroke-opacity="0.35" points="{" ".join(f"{px(a):.1f},{py(b):.1f}" for a, b in train)}"/>')
        s.append(f'<polyline fill="none" stroke="{c}" stroke-width="2" points="{" ".join(f"{px(a):.1f},{py(b):.1f}" for a, b in val)}"/>')
        s.append(f'<circle cx="{px(val[-1][0]):.1f}" cy="{py(val[-1][1]):.1f}" r="3" fill="{c}"/>')
        s.append(f'<text x="{W - R + 10}" y="{py(val[-1][1]) + 4 - 16 * (i % 2):.1f}" fill="{c}">{name}: {val[-1][1]:.3f}</text>')
    s.append(f'<text x="{W - R + 10}" y="{T + 6}" fill="#666">thin: training loss</text><text x="{W - R + 10}" y="{T + 22}" fill="#666">thick: validation</text></svg>')
    open(out, "w").write("\n".join(s) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
