#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/performance.py without measuring: a disturbed turn is discarded and repeated, kinds of CPU have stable names, runs of some sections keep the others in the
# table, and the tables in the tree are those that their results make.
set -u
source=$2
command -v python3 >/dev/null || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
python3 -B - "$dir" <<'P'
import json, os, shutil, sys
sys.path.insert(0, "bench")
import measure, parameter_server, performance, table

folder = sys.argv[1]
os.environ.pop("KUMI_CACHE", None)

# peaks before and after: the second turn of b ends at half the peak, so b runs once more; c always runs disturbed, and d fails
calls, peaks = [], iter([10, 10, 10, 5, 5,  10, 10, 5, 5,  10, 10, 5, 5,  10, 5, 5, 5])
b = measure.Bench("build", None, folder, False, 2)
b.say = lambda text: None
def peak():
    now = {"f32": next(peaks, 5)}
    b.peaks.setdefault("f32", []).append(now["f32"])
    return now
b.peak = peak
def call(name):
    def made():
        calls.append(name)
        if name == "d":
            raise measure.Failed("no d")
        return {"tps": len(calls), "times_ms": [1.0 * len(calls)]}
    return made
found = measure.take_turns(b, {name: call(name) for name in "abcd"})
assert calls.count("d") == 1 and found["d"] is None, calls
assert calls.count("a") == 2 and (found["a"]["turns"], found["a"]["discarded"]) == (2, 0), (calls, found)
assert (found["b"]["turns"], found["b"]["discarded"]) == (2, calls.count("b") - 2), (calls, found)
assert calls.count("c") == 2 + measure.EXTRA_ROUNDS and (found["c"]["turns"], found["c"]["discarded"]) == (1, 3), (calls, found)
assert found["c"]["disturbed"] and "disturbed" not in found["a"] and "disturbed" not in found["b"], found
assert b.discarded == 3 + found["b"]["discarded"] and any("c: no turn without disturbance" in note for note in b.notes), (b.discarded, b.notes)

# rivals: what is beaten by far in its first turn has no other
rates, calls[:], peaks, b.peaks = {"a": 100, "b": 95, "c": 80, "d": 80}, [], iter(()), {}
b.peak = lambda: {}
def rated(name):
    def made():
        calls.append(name)
        return {"tps": rates[name], "times_ms": [1.0]}
    return made
found = measure.take_turns(b, {name: rated(name) for name in rates}, rivals=[["a", "b", "c"]])
assert "".join(calls) == "abcdabd" and [found[name]["turns"] for name in rates] == [2, 2, 1, 2], (calls, found)

# rows of several turns: of undisturbed ones where there are some, and their bytes as they are
row = lambda us, **more: {"collective": "all_reduce", "memory": None, "bytes": 268435456, "dtype": "f32", "median_us": us, **more}
rows = measure.same_rows([row(5.0, disturbed=True), row(2.0), row(3.0)])
assert rows == [row(2.5)] and isinstance(rows[0]["bytes"], int), rows

# figures of a disturbed turn neither meet a target nor miss it, nor does what is computed from them
rows = [{"a": 2.0, "disturbed": True}, {"a": 1.0}]
assert [type(row["a"]) for row in table.flagged(rows)] == [table.Disturbed, float]
half = table.at_least("x", 2 * table.flagged(rows)[1]["a"] / table.flagged(rows)[0]["a"], 3)
assert half[3] is None and table.cell_of(half) == "x 1.00, disturbed (3)", half
assert table.cell_of(table.figure("y", 2.0)) == "y 2.00"
table.ROWS, kept = [("r", lambda r: [half]), ("s", lambda r: [half, table.at_most("z", 1, 2)]), ("t", lambda r: [half, table.at_most("z", 3, 2)])], table.ROWS
assert [verdict for _, _, verdict in table.lines_of(None)] == ["disturbed", "met where undisturbed", "**missed**"]
table.ROWS = kept

# samples of an update of a parameter server: of all workers, or of one
assert [mode for mode in parameter_server.MODES if parameter_server.is_single(mode)] == ["async", "ssp:2"]

for cpu, isa, kind in (("Intel(R) Xeon(R) Processor", "amx", "intel-xeon-amx"), ("AMD EPYC", "avx512bf16", "amd-epyc-avx512bf16"),
                       ("AMD EPYC 9R14 96-Core Processor", "avx2", "amd-epyc-9r14-avx2"), ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", "avx2", "intel-core-i7-8550u-avx2")):
    assert performance.kind_of(cpu, isa) == kind, performance.kind_of(cpu, isa)

# two runs of different sections: the second keeps the first's
run = {"tps": 484.123456, "mfu": None, "step_ms": {"median": 2.1, "min": 2.0, "max": 2.2, "n": 3}, "turns": 3, "discarded": 1}
def section(commit, data):
    return {"date": "2026-01-02", "commit": commit, "version": "1.0", "cpus": [0, 1], "versions": {"PyTorch": "2.15"}, "quick": False, "discarded": 1,
            "not_measured": [], "data": data}
store = {"cpu": "AMD EPYC", "isa": "avx512bf16", "sections": {"long": section("aaa", {"kumi 1x2 bf16": run, "kumi 1x2 f32": {**run, "tps": 242}})}}
performance.save(folder, "k", store)
store = performance.load(folder, "k")
assert store["sections"]["long"]["data"]["kumi 1x2 bf16"] == {**{k: v for k, v in run.items() if k != "mfu"}, "tps": 484.1}, store
performance.save(folder, "k", {**store, "sections": {**store["sections"], "nanogpt": section("bbb", {"kumi 2x1 f32": run, "torch 1x2 f32 eager": {**run, "tps": 242}})}})
performance.write_table(folder, "k")
page = open(folder + "/k.md").read()
for text in ("# AMD EPYC, avx512bf16\n", "Measured: long on 2026-01-02, kumi 1.0 (aaa); nanogpt on 2026-01-02, kumi 1.0 (bbb). Not measured: limits, ops,",
             "<!-- measured:comparison-k -->\nTwo cores of this machine: AMD EPYC, avx512bf16;", "f32, eager 2.00 (1.6)", "one sample 2.00 (1.8)",
             "| nanoGPT's CPU setting | PyTorch 1x2 f32 eager | 242 |", "Turns discarded because the machine was disturbed: 2."):
    assert text in page, (text, page)
with open(folder + "/k.md", "a") as f:
    f.write("A note.\n")
performance.write_table(folder, "k")
assert open(folder + "/k.md").read() == page + "A note.\n"

# one model over two ranks: a row a layout, beside data parallelism and the fastest peer with the same micro-batch
runs = {"kumi dp bf16": {**run, "tps": 100}, "kumi pp zb-v bf16": {**run, "tps": 90, "pss_bytes": 2.04e9}, "torch pp 1f1b bf16 eager": {**run, "tps": 40},
        "torch pp zbv bf16 eager": {**run, "tps": 45}, "torch pp zbv micro 4 bf16 eager": {**run, "tps": 60}}
lines = table.layouts(table.Results({**store, "sections": {"parallel": section("ccc", runs)}}), "X")
assert lines[0].startswith("GPT-2 124M on two ranks") and ": X; 2026-01-02, PyTorch 2.15 " in lines[0], lines
assert lines[4] == "| data parallel | 100 | 1.00 | – | – | – | – | – | – |" and lines[-1] == "| `pp` 2, zb-v | 90 | 0.90 | 2.00 | 2.0 | – | – | – | – |", lines
assert table.layouts(table.Results(store), "X") is None

# a page repeats the block of a table, of another kind only where that one has it
block = lambda kind, text: f"<!-- measured:m-{kind} -->\n{text}\n<!-- /measured -->\n"
for kind, text in (("a-b", block("a-b", 1)), ("c", "")):
    with open(f"{folder}/{kind}.md", "w") as f:
        f.write("# X\n" + text)
tables, performance.TABLES = performance.TABLES, folder
for kind, more, want in ((None, "", 1), ("c", "", 1), ("c", block("c", 2), 2)):
    with open(folder + "/c.md", "a") as f:
        f.write(more)
    with open(folder + "/page", "w") as f:
        f.write("before\n" + block("a-b", 0) + "after\n")
    performance.copy_block(folder + "/page", "m", kind)
    assert open(folder + "/page").read() == "before\n" + block("a-b" if want == 1 else "c", want) + "after\n", (kind, want)
performance.TABLES = tables

for name in os.listdir(performance.TABLES):
    if name.endswith(".json"):
        kind = name.removesuffix(".json")
        for end in ".json", ".md":
            shutil.copy(f"{performance.TABLES}/{kind}{end}", folder)
        performance.write_table(folder, kind)
        assert open(f"{folder}/{kind}.md").read() == open(f"{performance.TABLES}/{kind}.md").read(), f"{kind}.md: run bench/performance.sh --table"
P
