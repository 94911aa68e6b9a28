#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a run says of itself in metrics.jsonl and summary.json, held against the plan, the digest and itself.
set -u
kumi=$1/kumi source=$2
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
export KUMI_CACHE=$dir/cache
say() { echo "$*"; exit 1; }
small=(configs/shakespeare-fast.json -n 2 --set model.n_layer=2 --set train.threads=1 --set train.eval_tokens=2048)
"$kumi" train "${small[@]}" --set train.steps=20 --set train.log_every=5 --set train.eval_every=10 --out "$dir/run" \
    >"$dir/out" 2>"$dir/err" || say "train: $(cat "$dir/err")"
"$kumi" plan "${small[@]}" --json >"$dir/plan.json" || say "plan failed"
"$kumi" ckpt digest "$dir/run" >"$dir/digest" || say "ckpt digest failed"
cat >"$dir/check.py" <<'END'
import json, os, sys
dir = sys.argv[1]
summary = json.load(open(dir + "/run/summary.json"))
plan = json.load(open(dir + "/plan.json"))
rows = [json.loads(line) for line in open(dir + "/run/metrics.jsonl")]
steps = [r for r in rows if "loss" in r]
evals = [r for r in rows if "val_loss" in r]

# the summary
assert summary["step"] == summary["update"] == 20 and summary["ranks"] == 2, summary
assert summary["loss"] == steps[-1]["loss"] and summary["val_loss"] == evals[-1]["val_loss"], summary
assert summary["digest"] == open(dir + "/digest").read().strip(), summary
assert summary["val_curve"] == [[r["step"], r["val_loss"]] for r in evals], summary
assert summary["memory_planned_bytes"] == plan["host_bytes"], (summary, plan["host_bytes"])
held = summary["memory_pss_bytes"]
if held is not None or os.path.exists("/proc/self/smaps_rollup"):
    assert held > summary["memory_planned_bytes"] // 2 and held % 1024 == 0, summary
assert summary["median_tps"] > 0 and summary["median_step_ms"] > 0, summary
END
python3 "$dir/check.py" "$dir"
