#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi plan: the roofline's rows add up and follow the limits that are kept; a picture is drawn, or refused in one line.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export KUMI_CACHE=$dir/cache
cd "$source" || exit 1
say() { echo "$*"; failed=1; }
plan=(plan configs/shakespeare-char.json -n 2 --set train.threads=1)
"$kumi" "${plan[@]}" --roofline >"$dir/text" 2>&1 || say "--roofline: $(cat "$dir/text")"
[ -s "$dir/cache/peak.json" ] || say 'limits were measured, but not kept'
"$kumi" "${plan[@]}" --roofline --json >"$dir/first.json" || say '--roofline --json failed'
sed -i 's/"f32": \([0-9.e+]*\)/"f32": 1e6/; s/"stream": \([0-9.e+]*\)/"stream": 1e15/' "$dir/cache/peak.json"
"$kumi" "${plan[@]}" --roofline --json >"$dir/slow.json" || say '--roofline --json failed on other limits'
python3 - "$dir" <<'P' || failed=1
import json, re, sys
dir = sys.argv[1]
text, first, slow = open(dir + "/text").read(), json.load(open(dir + "/first.json")), json.load(open(dir + "/slow.json"))
rows = re.findall(r"^(\w+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) %  (?:peak|bandwidth|both)$", text, re.M)
total = float(re.search(r"^in all \(T\) +[\d.]+ +[\d.]+ +([\d.]+)$", text, re.M)[1])
assert [r[0] for r in rows] == [o["op"] for o in first["ops"]] and len(rows) > 15, text
assert abs(sum(float(r[4]) for r in rows) - total) < 0.001 * len(rows), text
assert abs(first["least_ms"] - total) < 0.01, (first["least_ms"], total)
assert first["limits"]["source"] == dir + "/cache/peak.json", first
assert re.search(r"^T allows %.0f tokens/s$" % first["tps"], text, re.M), text
# the slow machine: FLOP alone count, and its cores share them
per_rank = slow["limits"]["flops"]["f32"] / 2
assert abs(slow["least_ms"] / (slow["flops"] / per_rank * 1e3) - 1) < 1e-6, slow
assert all(o["limit"] != "bandwidth" for o in slow["ops"] if o["flops"] > 0), slow
P
"$kumi" "${plan[@]}" --memory --picture "$dir/plan.svg" >"$dir/out" 2>"$dir/err"
case $? in
0)
    grep -q '^memory plan: 2 ranks' "$dir/out" || say '--picture took the text away'
    python3 -c 'import sys, xml.dom.minidom as d; assert len(d.parse(sys.argv[1]).getElementsByTagName("path")) > 100' "$dir/plan.svg" ||
        say '--picture: no drawing'
    "$kumi" "${plan[@]}" --picture "$dir/none/plan.pdf" >"$dir/out" 2>"$dir/err"
    [ $? = 5 ] && grep -q "^kumi: error: plan: $dir/none/plan.pdf: " "$dir/err" || say "into no folder: $(cat "$dir/err")"
    ;;
2)
    grep -qx 'kumi: error: plan: --picture: this build has no cairo; install libcairo2-dev .*' "$dir/err" || say "without cairo: $(cat "$dir/err")"
    ;;
*) say "--picture: $(cat "$dir/err")" ;;
esac
for bad in '--picture plan.gif' '--picture plan' '--roofline --memory' '--roofline --picture a.svg'; do
    # shellcheck disable=SC2086
    "$kumi" "${plan[@]}" $bad >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] && [ "$(grep -c '^kumi: error: ' "$dir/err")" = 1 ] && [ ! -s "$dir/out" ] || say "$bad: $(cat "$dir/err")"
done
exit $failed
