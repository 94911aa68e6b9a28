#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a run says of itself in metrics.jsonl and summary.json, held against the plan, the digest and itself.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
say() { echo "$*"; exit 1; }
small=(configs/shakespeare-fast.json -n 2 --set model.n_layer=2 --set train.threads=1 --set train.global_batch=8
    --set train.eval_tokens=1024)
"$kumi" train "${small[@]}" --set train.steps=20 --set train.log_every=5 --set train.eval_every=10 --out "$dir/run" \
    >"$dir/out" 2>"$dir/err" || say "train: $(cat "$dir/err")"
grep -q 'tok/s  mfu [0-9]*\.[0-9] %' "$dir/err" || say "no mfu at the first start: $(cat "$dir/err")"
cp "$dir/cache/peak.json" "$dir/first.json" || say "the first start keeps no peak"
"$kumi" train "${small[@]}" --set train.steps=20 --set train.log_every=1 --set train.eval_every=10 --out "$dir/whole" \
    --until 7 >"$dir/out" 2>"$dir/err" || say "train --until: $(cat "$dir/err")"
"$kumi" train "${small[@]}" --set train.steps=20 --set train.log_every=1 --set train.eval_every=10 --out "$dir/whole" \
    --resume >"$dir/out" 2>"$dir/err" || say "train --resume: $(cat "$dir/err")"
grep -v '"step":7,.*"val_loss"' "$dir/whole/metrics.jsonl" >"$dir/whole.jsonl"
"$kumi" plan "${small[@]}" --json >"$dir/plan.json" || say "plan failed"
"$kumi" plan "${small[@]}" --json --set checkpoint.async=true --set checkpoint.staging_mb=66 >"$dir/staged.json" || say "plan failed"
python3 -c 'import json, sys; a, b = (json.load(open(p)) for p in sys.argv[1:]); assert a["staging_bytes"] == 0 and b["staging_bytes"] == 64 << 20 and b["host_bytes"] - a["host_bytes"] == 128 << 20, b' \
    "$dir/plan.json" "$dir/staged.json" || say "the plan with staging: $(cat "$dir/staged.json")"
"$kumi" ckpt digest "$dir/run" >"$dir/digest" || say "ckpt digest failed"

# a peak that was measured: mfu is against that of the 2 cores in use, at the run's dtype
"$kumi" info --json >"$dir/info.json" || say "info --json failed"
python3 -c '
import json, sys
cpu = json.load(sys.stdin)["cpu"]
# two starts agree, and the last was not before today: nothing is measured
rows = [{"cpu": cpu["model"], "isa": cpu["isa"], "threads": n, "f32": n * 2e9, "bf16": n * 1e13, "stream": n * 1e12, "last": "9999-12-31",
         "starts": {"f32": [n * 2e9] * 2, "bf16": [n * 1e13] * 2, "stream": [n * 1e12] * 2}} for n in (1, 2, 64)]
rows.append({"cpu": "another", "isa": cpu["isa"], "threads": 2, "f32": 1e9, "bf16": 1e9, "stream": 1e9})
json.dump(rows, sys.stdout)' <"$dir/info.json" >"$dir/cache/peak.json" || say "no peak.json"
"$kumi" train "${small[@]}" --set train.steps=20 --set train.log_every=5 --set train.eval_every=10 --out "$dir/peak" \
    >"$dir/out" 2>"$dir/err" || say "train with a peak: $(cat "$dir/err")"
"$kumi" plan "${small[@]}" --roofline --json >"$dir/roofline.json" || say "plan --roofline failed"
grep -q 'tok/s  mfu [0-9]*\.[0-9] %' "$dir/err" || say "no mfu in: $(cat "$dir/err")"
# rows that are mostly padding: mfu is of the program, which computes them all
python3 -c 'for n in range(2, 34): print("{\"text\": \"%s\"}" % ("word " * n)[:n])' >"$dir/texts.jsonl"
"$kumi" train "${small[@]}" --set data.train="$dir/texts.jsonl" --set data.pack=false --set data.val_fraction=0 --set train.steps=6 --set train.log_every=1 \
    --out "$dir/masked" >"$dir/out" 2>"$dir/err" || say "train with padded rows: $(cat "$dir/err")"
# two hosts, which this machine pretends to be: their ranks share its cores, which count once, and so do the limits
both=("${small[0]}" "${small[@]:3}" --set precision.compute=f32)
timeout 60 "$kumi" train "${both[@]}" -H a:1,b:1 --rsh none --set train.steps=6 --out "$dir/hosts" >"$dir/out" 2>"$dir/err" || say "train on two hosts: $(cat "$dir/err")"
"$kumi" plan "${both[@]}" -n 2 --roofline --json >"$dir/f32.json" || say "plan --roofline in f32 failed"
# where nothing can be kept, mfu is against what this start measured
KUMI_CACHE=/proc/nowhere KUMI_LOG=train:info "$kumi" train "${small[@]}" --set train.steps=1 --out "$dir/unkept" >"$dir/out" 2>"$dir/err" || say "train without a cache: $(cat "$dir/err")"
[ "$(grep -c 'the matrix peak was not saved' "$dir/err")" = 1 ] || say "no line about the cache, or several: $(cat "$dir/err")"
grep -q '"mfu":[0-9]' "$dir/unkept/metrics.jsonl" || say "no mfu without a cache: $(cat "$dir/unkept/metrics.jsonl")"
cat >"$dir/check.py" <<'END'
import json, os, sys
dir = sys.argv[1]
summary = json.load(open(dir + "/run/summary.json"))
plan = json.load(open(dir + "/plan.json"))
rows = [json.loads(line) for line in open(dir + "/run/metrics.jsonl")]
steps = [r for r in rows if "loss" in r]
evals = [r for r in rows if "val_loss" in r]

# the lines: a step's has what a step is known by, an evaluation's has the loss of the validation split
keys = {"step", "epoch", "loss", "grad_norm", "lr", "tokens", "step_ms", "tps", "mfu", "memory_gib", "data_ms", "exposed_comm_ms",
    "wait_ms", "optimizer_ms"}
assert [r["step"] for r in steps] == [1, 5, 10, 15, 20] and [r["step"] for r in evals] == [10, 20], rows
tokens, per_epoch = 8 * 64, (1115394 * 9 // 10 - 1) // 64 // 8 # global batch x length; steps of 9/10 of the text
for r in steps:
    assert set(r) == keys, r
    assert r["tokens"] == tokens and 0 < r["loss"] < 6 and r["grad_norm"] > 0, r
    assert abs(r["lr"] / (4e-3 * r["step"] / 100) - 1) < 0.02, r # warm-up over 100 steps
    assert abs(r["epoch"] * per_epoch / r["step"] - 1) < 0.01, r
    assert r["step_ms"] > 0 and r["data_ms"] >= 0, r
    assert 0 <= r["wait_ms"] <= r["exposed_comm_ms"] + 0.001, r # means of the ranks
    assert r["exposed_comm_ms"] > 0 and r["optimizer_ms"] > 0, r
    assert abs(r["tps"] * (r["step_ms"] + r["data_ms"]) / 1e3 / tokens - 1) < 0.01, r
    assert r["memory_gib"] is None or r["memory_gib"] * 2**30 > plan["host_bytes"] / 2, r
for r in evals:
    assert set(r) == {"step", "epoch", "val_loss"} and 0 < r["val_loss"] < 6, r
assert steps[-1]["loss"] < steps[0]["loss"], steps
whole = [json.loads(line) for line in open(dir + "/whole.jsonl")] # the same run, every step: the same numbers
exact = lambda r: {k: r[k] for k in ("step", "epoch", "loss", "grad_norm", "lr", "tokens", "val_loss") if k in r}
assert [r["step"] for r in whole if "loss" in r] == list(range(1, 21)), whole
assert [exact(r) for r in whole if "val_loss" in r or r["step"] in (1, 5, 10, 15, 20)] == [exact(r) for r in rows], whole

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

# mfu: 6 N + 12 layers width length, N without positions, over the peak of two cores
flops = 6 * (256 * 128 + 2 * 12 * 128 * 128) + 12 * 2 * 128 * 64 # of the matrices, and attention
first = json.load(open(dir + "/first.json"))
assert len(first) == 1 and all(len(first[0]["starts"][d]) == 1 for d in ("f32", "bf16")) and first[0]["starts"]["stream"] == [], first
assert summary["mfu"] > 0 and all(r["mfu"] > 0 for r in steps), summary
assert summary["step_over_roofline"] is None and set(summary["limits"]) == {"cores", "flops", "stream_bytes", "source"}
assert summary["limits"]["flops"] == {d: first[0][d] for d in ("f32", "bf16")} and summary["limits"]["stream_bytes"] is None, summary
assert summary["limits"]["source"] == dir + "/cache/peak.json", summary
peak = json.load(open(dir + "/peak/summary.json"))
n = peak["limits"]["cores"]
assert peak["limits"] == {"cores": n, "flops": {"f32": n * 2e9, "bf16": n * 1e13}, "stream_bytes": n * 1e12,
                          "source": dir + "/cache/peak.json"}, peak
T = json.load(open(dir + "/roofline.json"))
assert T["limits"] == peak["limits"], (T, peak)
assert abs(peak["step_over_roofline"] / (peak["median_step_ms"] / T["least_ms"]) - 1) < 1e-6, (T, peak)
assert peak["step_over_roofline"] > 1, peak # no step is below its roofline
has_two = json.load(open(dir + "/info.json"))["cpu"]["cores"] > 1
close = lambda mfu, tps: abs(mfu / (tps * flops / 2e13) - 1) < 1e-3 or not has_two
for row in [json.load(open(dir + "/peak/summary.json"))] + [json.loads(l) for l in open(dir + "/peak/metrics.jsonl")]:
    assert "mfu" not in row and "val_loss" in row or close(row["mfu"], row.get("tps") or row["median_tps"]), row
assert summary["cores"] == peak["cores"] == n, summary
masked = [r for r in map(json.loads, open(dir + "/masked/metrics.jsonl")) if "loss" in r]
assert len(masked) == 6 and len({r["tokens"] for r in masked}) > 1, masked
for r in masked:
    assert 0 < r["tokens"] < tokens / 2, r
    assert abs(r["mfu"] * (r["step_ms"] + r["data_ms"]) / 1e3 * n * 1e13 / (tokens * flops) - 1) < 0.01, r
hosts, T = (json.load(open(dir + "/" + f)) for f in ("hosts/summary.json", "f32.json"))
assert hosts["cores"] == hosts["limits"]["cores"] == n and hosts["limits"] == T["limits"], (hosts, T)
assert abs(hosts["mfu"] / (hosts["median_tps"] * flops / (n * 2e9)) - 1) < 1e-3, hosts
# T is almost that of one host, for it is bound by products here
assert abs(hosts["step_over_roofline"] / (hosts["median_step_ms"] / T["least_ms"]) - 1) < 0.05, (hosts, T)
END
python3 "$dir/check.py" "$dir" || say "metrics.jsonl, summary.json: see above"

# batches are read faster than anything trains: the bench says so, in both forms
"$kumi" bench data "${small[0]}" >"$dir/data.txt" && grep -Eqx '[0-9]+ batches of [0-9]+ tokens: [0-9]+ tokens/s; per batch median [0-9.]+ us, max [0-9.]+ us' "$dir/data.txt" ||
    say "bench data: $(cat "$dir/data.txt")"
"$kumi" bench data "${small[0]}" --json --set data.seq_len=16 | python3 -c 'import json, sys; d = json.load(sys.stdin); assert d["step_tokens"] % 16 == 0 and 0 < d["p50_us"] <= d["max_us"] and d["tokens_per_s"] > 1e5, d' ||
    say "bench data --json"
"$kumi" bench data 2>"$dir/err"
[ $? = 2 ] && grep -q '^kumi: error: kumi bench data: a configuration is missing' "$dir/err" || say "bench data without a file: $(cat "$dir/err")"
