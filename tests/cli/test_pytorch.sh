#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `kumi train` from a Hugging Face directory on raw tokens prints and records PyTorch's losses.
. "$2/tests/cli/begin.sh"
for model in tied untied; do
    for n in 1 2; do
        fixture=tests/fixtures/gpt2/$model
        "$kumi" train $fixture/train.json -n $n --out "$dir/$model$n" 2>"$dir/err" >/dev/null || { cat "$dir/err"; exit 1; }
        python3 - $fixture/expected.json "$dir/$model$n/metrics.jsonl" "$dir/err" <<'P' || exit 1
import json, re, sys

expected = json.load(open(sys.argv[1]))["f64"]
rows = [json.loads(line) for line in open(sys.argv[2])]
printed = re.findall(r"step \d+/\d+  loss (\S+)", open(sys.argv[3]).read())
if len(rows) != 20 or len(printed) != 20:
    sys.exit(f"{sys.argv[2]}: {len(rows)} rows, {len(printed)} lines printed")
for row, loss, norm, text in zip(rows, expected["loss"], expected["norm"], printed):
    if abs(row["loss"] / loss - 1) > 1e-5 or abs(row["grad_norm"] / norm - 1) > 1e-5:
        sys.exit(f"{sys.argv[2]}: {row}; PyTorch: loss {loss}, norm {norm}")
    if abs(float(text) - loss) > 6e-5:  # four digits
        sys.exit(f"printed {text}; PyTorch: {loss}")
P
    done
done
