#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi train --profile: a table whose times add up, a trace that is JSON with a lane per rank, the same bits, and clear refusals.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
run=(train configs/shakespeare-fast.json -n 2 --set train.steps=8 --set train.global_batch=4 --set train.eval_tokens=64 --set model.n_layer=2)
"$kumi" "${run[@]}" --out "$dir/plain" >"$dir/plain.txt" 2>&1 || say "the plain run failed: $(cat "$dir/plain.txt")"
"$kumi" "${run[@]}" --out "$dir/p" --profile=4-6 --set checkpoint.every=5 >"$dir/p.txt" 2>&1 || say "the profiled run failed: $(cat "$dir/p.txt")"
[ "$(grep digest "$dir/p.txt")" = "$(grep digest "$dir/plain.txt")" ] || say 'profiling changed the digest'
[ ! -e "$dir/plain/profile.txt" ] || say 'a run without --profile wrote a profile'
grep -qx 'steps 4 to 6, 2 ranks; times are means over steps and ranks' "$dir/p.txt" || say "the command prints no table: $(cat "$dir/p.txt")"
"$kumi" "${run[@]}" -n 1 --out "$dir/one" --profile=4 --set train.steps=4 >"$dir/one.txt" 2>&1 && grep -q '^steps 4 to 4, 1 rank; ' "$dir/one.txt" ||
    say "one rank: $(cat "$dir/one.txt")"
python3 - "$dir/p" <<'P' || failed=1
import json, sys
rows, total, ranks = [], None, []
for line in open(sys.argv[1] + "/profile.txt"):
    if line.startswith("total"):
        total = float(line.split()[1].rstrip(";"))
    elif line.startswith("rank "):
        ranks.append([float(x) for x in line.split()[1:]])
    elif line[44:45] == " " and "%" in line and not line.startswith("op "):
        rows.append((line[:44].strip(), int(line[44:52]), float(line[52:63]), float(line[63:74])))
        slowest, fastest = int(line[74:79]), int(line[90:95])
        assert {slowest, fastest} <= {0, 1} and float(line[63:74]) >= float(line[79:90]), line
        assert abs(float(line[63:74]) + float(line[79:90]) - 2 * float(line[52:63])) < 0.003, line
names = [r[0] for r in rows]
assert {"linear", "linear_dw", "attention", "adamw", "wait", "start reduce_scatter"} <= set(names), names
assert abs(sum(r[2] for r in rows) - total) < 0.002 * len(rows), (rows, total)
assert all(slowest >= mean - 0.001 for _, _, mean, slowest in rows), rows
assert [r[2] for r in rows] == sorted((r[2] for r in rows), reverse=True), rows
assert dict((r[0], r[1]) for r in rows)["attention"] == 2, rows
# a rank's time is that of its instructions; the mean of the ranks is the table's sum
assert [r[0] for r in ranks] == [0, 1], ranks
assert all(abs(r[1] - sum(r[2:5])) < 0.005 and r[2] > 0 and r[5] > 0 and r[6] > 0 for r in ranks), ranks
assert abs(sum(r[1] for r in ranks) / 2 - total) < 0.002, (ranks, total)
assert abs(sum(r[4] for r in ranks) / 2 - dict((r[0], r[2]) for r in rows)["wait"]) < 0.002, (ranks, rows)
events = json.load(open(sys.argv[1] + "/profile.trace.json"))["traceEvents"]
assert {e["pid"] for e in events} == {0, 1}
steps = [e for e in events if e["name"].startswith("step ")]
assert sorted(e["name"] for e in steps) == sorted(2 * ["step 4", "step 5", "step 6"]), steps
lanes = ["steps", "compute", "communication", "wait", "data", "checkpoint"]
for rank in 0, 1:
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == rank] == lanes, events[:20]
lane = {name: i for i, name in enumerate(lanes)}
for rank in 0, 1: # a step's data lie before it, its checkpoint behind
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
    at = sorted((e["ts"], e["dur"]) for e in mine if e["name"].startswith("step "))
    data = sorted((e["ts"], e["dur"]) for e in mine if e["tid"] == lane["data"])
    save = [(e["ts"], e["dur"]) for e in mine if e["tid"] == lane["checkpoint"]]
    assert len(data) == 3 and len(save) == 1 and all(e["ts"] >= 0 for e in mine), (data, save)
    assert all(d[0] + d[1] <= s[0] + 0.01 for d, s in zip(data, at)), (data, at)
    assert at[1][0] + at[1][1] <= save[0][0] + 0.01 and sum(save[0]) <= data[2][0] + 0.01, (at, save, data)
    opens, closes = ({e["id"]: e["ts"] for e in events if e["ph"] == ph and e["pid"] == rank} for ph in "be")
    assert opens and set(opens) == set(closes) and all(opens[i] < closes[i] for i in opens), (opens, closes)
for rank in 0, 1: # what a step holds fills it, one after the other
    for s in (e for e in steps if e["pid"] == rank):
        assert {e["tid"] for e in events if e["ph"] == "X" and e["pid"] == rank and e["tid"] == lane["wait"]
                and e["name"] == "wait"} and not [e for e in events if e["ph"] == "X" and e["tid"] == lane["wait"]
                and e["name"] != "wait"]
        inside = sorted((e for e in events if e["ph"] == "X" and e["tid"] > 0 and e["pid"] == rank
                         and s["ts"] - 0.01 <= e["ts"] < s["ts"] + s["dur"]), key=lambda e: e["ts"])
        assert abs(sum(e["dur"] for e in inside) - s["dur"]) < 0.002 * len(inside) + 0.01, (s, len(inside))
P
"$kumi" "${run[@]}" --out "$dir/q" --profile --profile-by path --profile-sort name --profile-rows 3 >"$dir/q.txt" 2>&1 || say "by path: $(cat "$dir/q.txt")"
"$kumi" "${run[@]}" --out "$dir/s" --profile=7-20 --profile-by source >"$dir/s.txt" 2>&1 || say "by source: $(cat "$dir/s.txt")"
grep -q '^steps 7 to 8, 2 ranks' "$dir/s.txt" || say "steps behind the end: $(cat "$dir/s.txt")"
# rows name the line of the model that built the op: its call stands there
for op in attention layer_norm add; do
    grep -qE "^gpt2.c:[0-9]+ $op " "$dir/s.txt" || say "by source: no row of $op: $(cat "$dir/s.txt")"
    for line in $(sed -n "s/^gpt2.c:\([0-9]*\) $op  .*/\1/p" "$dir/s.txt"); do
        sed -n "${line}p" src/nn/gpt2.c | grep -qE "kumi_$op(_within)?\(|kumi_embedding\(" || say "gpt2.c:$line does not build $op"
    done
done
grep -qE '^gpt2.c:[0-9]+ adamw ' "$dir/s.txt" || say "by source: the update has no line: $(cat "$dir/s.txt")"
grep -q '^steps 3 to 6, 2 ranks' "$dir/q.txt" || say "the default steps: $(cat "$dir/q.txt")"
[ "$(sed -n '/^path /,/^…/p' "$dir/q.txt" | grep -c '%')" = 3 ] || say "--profile-rows: $(cat "$dir/q.txt")"
for bad in '--profile=x' '--profile=0-2' '--profile=6-5' '--profile=-5-9223372036854775807' '--profile=9-12' '--profile --profile-by=size' '--profile --profile-sort=size'; do
    # shellcheck disable=SC2086
    "$kumi" "${run[@]}" --out "$dir/bad" --overwrite $bad >"$dir/bad.txt" 2>&1
    [ $? = 2 ] && grep -q '^kumi: error: profile: ' "$dir/bad.txt" || say "$bad: $(cat "$dir/bad.txt")"
done
# a job that is started again with the same options: of the steps those are profiled that are left, if any
again() { "$kumi" "${run[@]}" --out "$dir/again" --resume=auto "$@" >"$dir/again.txt" 2>"$dir/again.err"; }
again --profile=2-5 --until 3 && grep -q '^steps 2 to 3, 2 ranks' "$dir/again.txt" || say "a profile that is cut off: $(cat "$dir/again.err")"
again --profile=2-5 --until 6 && grep -q '^steps 4 to 5, 2 ranks' "$dir/again.txt" || say "the rest of a profile: $(cat "$dir/again.err")"
again --profile=0-5
[ $? = 2 ] && grep -q '^kumi: error: profile: 0-5: ' "$dir/again.err" || say "step 0 after a resume: $(cat "$dir/again.err")"
again --profile=2-5 || say "a profile of steps that are done: $(cat "$dir/again.err")"
[ "$(grep -c '^kumi: profile: 2-5: the run has done these steps and continues after step 6; nothing is profiled$' "$dir/again.err")" = 1 ] && ! grep -q '^steps ' "$dir/again.txt" ||
    say "a profile of steps that are done: $(cat "$dir/again.err" "$dir/again.txt")"
[ "$(grep digest "$dir/again.txt")" = "$(grep digest "$dir/plain.txt")" ] || say 'a profile that was cut off changed the digest'
# files that cannot be written: said once, and training goes on; at its end an error, and the state is saved
"$kumi" "${run[@]}" --out "$dir/full" --until 1 >"$dir/full.txt" 2>&1 || say "$(cat "$dir/full.txt")"
mkdir "$dir/full/profile.txt"
"$kumi" "${run[@]}" --out "$dir/full" --resume --profile=3-4 >"$dir/full.txt" 2>&1
[ $? = 5 ] && [ "$(grep -c 'profile: .*; training continues and writes the profile at its end' "$dir/full.txt")" = 1 ] &&
    [ "$(grep -c '^kumi: error: profile: ' "$dir/full.txt")" = 1 ] && [ -d "$dir/full/checkpoints/step-00000008" ] || say "a profile that cannot be written: $(cat "$dir/full.txt")"
exit $failed
