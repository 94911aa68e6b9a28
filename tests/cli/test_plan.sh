#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi plan: the roofline's rows add up and follow the limits that are kept; a picture is drawn, or refused in one line.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
plan=(plan configs/shakespeare-char.json -n 2 --set train.threads=1)
"$kumi" "${plan[@]}" --roofline >"$dir/text" 2>&1 || say "--roofline: $(cat "$dir/text")"
[ -s "$dir/cache/peak.json" ] || say 'limits were measured, but not kept'
"$kumi" "${plan[@]}" --roofline --json >"$dir/first.json" || say '--roofline --json failed'
sed -i 's/"f32": \([0-9.e+][0-9.e+]*\)/"f32": 1e6/; s/"stream": \([0-9.e+][0-9.e+]*\)/"stream": 1e15/' "$dir/cache/peak.json"
"$kumi" "${plan[@]}" --roofline --json >"$dir/slow.json" || say '--roofline --json failed on other limits'
python3 - "$dir" <<'P' || failed=1
import json, re, sys
dir = sys.argv[1]
text, first, slow = open(dir + "/text").read(), json.load(open(dir + "/first.json")), json.load(open(dir + "/slow.json"))
rows = re.findall(r"^(\w+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) %  (?:peak|bandwidth|both)$", text, re.M)
total = float(re.search(r"^total \(T\) +[\d.]+ +[\d.]+ +([\d.]+)$", text, re.M)[1])
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
    python3 -c 'import sys, xml.dom.minidom as d; assert len(d.parse(sys.argv[1]).getElementsByTagName("path")) > 50' "$dir/plan.svg" ||
        say '--picture: no drawing'
    # GPT-2 124M under every stage: bounded in size, whatever the layout
    for set in -n\ 1 -n\ 4\ --set\ parallel.share_host_state=false\ --set\ parallel.zero={0,1,2,3}; do
        # shellcheck disable=SC2086
        "$kumi" plan configs/gpt2-124m.json $set --picture "$dir/plan.svg" --axis time >"$dir/out" 2>"$dir/err" || say "124m $set: $(cat "$dir/err")"
        [ "$(stat -c %s "$dir/plan.svg")" -lt 1000000 ] || say "124m $set: $(stat -c %s "$dir/plan.svg") bytes"
    done
    "$kumi" "${plan[@]}" --picture "$dir/none/plan.pdf" >"$dir/out" 2>"$dir/err"
    [ $? = 5 ] && grep -q "^kumi: error: plan: $dir/none/plan.pdf: " "$dir/err" || say "into no folder: $(cat "$dir/err")"
    ;;
2)
    grep -qx 'kumi: error: plan: --picture: this build has no cairo; install libcairo2-dev .*' "$dir/err" || say "without cairo: $(cat "$dir/err")"
    ;;
*) say "--picture: $(cat "$dir/err")" ;;
esac
"$kumi" "${plan[@]}" --set memory.recompute=selective >"$dir/out" 2>"$dir/err"
grep -q '^  --set memory.recompute=full  *[0-9.]* MiB' "$dir/out" && ! grep -q 'recompute=selective' "$dir/out" || say "advice beside recompute=selective: $(cat "$dir/out" "$dir/err")"
"$kumi" "${plan[@]}" --limit 64GiB >"$dir/out" 2>"$dir/err" && [ ! -s "$dir/err" ] || say "--limit 64GiB: $(cat "$dir/err")"
"$kumi" "${plan[@]}" --limit 1MB >"$dir/out" 2>"$dir/err"
[ $? = 13 ] && grep -q '^kumi: error: plan: --limit: a rank needs .* more than the limit of .*; at the peak: parameters [0-9.]* [KM]iB, .*lists ways' "$dir/err" && [ -s "$dir/out" ] || say "--limit 1MB: $(cat "$dir/err")"
# a model so small that no class has a MiB: its largest classes are named all the same
"$kumi" "${plan[@]}" --set model.n_layer=1 --set model.n_embd=8 --set train.micro_batch=1 --limit 1 >"$dir/out" 2>"$dir/err"
[ $? = 13 ] && grep -q '; at the peak: parameters [0-9.]* KiB, .*; `kumi plan' "$dir/err" || say "--limit 1: $(cat "$dir/err")"
"$kumi" "${plan[@]}" --stages --limit 64GiB >"$dir/out" 2>"$dir/err" && [ ! -s "$dir/err" ] &&
    grep -q '^  *zero 0  *zero 1  *zero 2  *zero 3  *shared$' "$dir/out" || say "--stages: $(cat "$dir/err")"
"$kumi" "${plan[@]}" --stages --limit 1MB >"$dir/out" 2>"$dir/err"
[ $? = 13 ] && grep -q '^kumi: error: plan: --limit: no ZeRO stage fits in ' "$dir/err" && [ -s "$dir/out" ] || say "--stages --limit 1MB: $(cat "$dir/err")"
# A stage that the other settings refuse is a column without figures.
split=("${plan[@]}" -n 4 --set parallel.tp=2 --stages)
"$kumi" "${split[@]}" >"$dir/out" 2>"$dir/err" && grep -q '^a rank .*B  *-$' "$dir/out" && grep -q '^shared is refused: config: .*parallel.host_state: "shared"; ' "$dir/out" || say "--stages with tp: $(cat "$dir/out" "$dir/err")"
"$kumi" "${split[@]}" --json 2>"$dir/err" | python3 -c 'import json, sys
*own, shared = json.load(sys.stdin)["stages"]
assert list(shared) == ["name", "refused"] and all(x["rank_bytes"] > 0 for x in own), shared' || say "--stages --json with tp: $(cat "$dir/err")"
"$kumi" "${plan[@]}" -n 2 --stages --set memory.offload='{"params": "host"}' >"$dir/out" 2>"$dir/err" && [ "$(grep -c '^zero [12] is refused: .*memory.offload.params' "$dir/out")" = 2 ] || say "--stages with offload: $(cat "$dir/out" "$dir/err")"
"$kumi" "${plan[@]}" -n 4 --stages --set parallel.tp=3 >"$dir/out" 2>"$dir/err"
[ $? = 2 ] && [ ! -s "$dir/out" ] || say "--stages that are all refused: $(cat "$dir/out" "$dir/err")"
# Parameters of the published models; those of configs/plan are planned in full, over 128 ranks.
count() { # parameters, arguments
    local want=$1 got
    shift
    got=$(timeout 60 "$kumi" plan "$@" --json 2>"$dir/err" | python3 -c 'import json, sys; print(json.load(sys.stdin)["params"])' 2>/dev/null)
    [ "$got" = "$want" ] || say "$*: ${got:-$(cat "$dir/err")} parameters, expected $want"
}
gpt2() { echo "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_positions\":1024,\"n_embd\":$1,\"n_layer\":$2,\"n_head\":$3}"; }
resnet='"data":{"kind":"cifar10","train":"data"},"train":{"global_batch":2}'
printf '{"model":{"model_type":"resnet","depth":50,"num_classes":1000,"stem":"imagenet","image_size":224},%s}' "$resnet" >"$dir/resnet50.json"
printf '{"model":{"model_type":"resnet","depth":18,"num_classes":10,"stem":"imagenet","image_size":32},%s}' "$resnet" >"$dir/resnet18.json"
for row in 25557032:50 44549160:101 60192808:152; do # as torchvision's
    count "${row%:*}" "$dir/resnet50.json" --set "model.depth=${row#*:}"
done
count 11181642 "$dir/resnet18.json"
for row in '774030080 1280 36 20' '1557611200 1600 48 25'; do
    # shellcheck disable=SC2086
    set -- $row
    printf '{"model":%s,"data":{"train":"data/tokens.bin"},"train":{"global_batch":1}}' "$(gpt2 "$2" "$3" "$4")" >"$dir/gpt2.json"
    count "$1" "$dir/gpt2.json"
done
count 174604259328 configs/plan/gpt3-175b.json -n 128
count 68976648192 configs/plan/llama2-70b.json -n 128
count 70553706496 configs/plan/llama3-70b.json -n 128
count 405853388800 configs/plan/llama3.1-405b.json -n 128
"$kumi" plan --params 7.5e9 -n 64 --grads bf16 >"$dir/out" 2>"$dir/err"
[ $? = 0 ] && grep -q '^total  *120  *31.41  *16.64  *1.875$' "$dir/out" || say "--params: $(cat "$dir/out" "$dir/err")"
"$kumi" plan --params 7.5e9 -n 64 --grads bf16 --no-master >"$dir/out" 2>"$dir/err" # 12 bytes each instead of 16
[ $? = 0 ] && grep -q '^total  *90  *30.94  *16.17  *1.406$' "$dir/out" || say "--params --no-master: $(cat "$dir/out" "$dir/err")"
"$kumi" plan --memory --params 175e9 --optimizer adamw --precision bf16 -n 128 --zero 3 >"$dir/out" 2>"$dir/err"
[ $? = 0 ] && grep -q '^zero  *3$' "$dir/out" && grep -q '^total  *24.61$' "$dir/out" || say "--zero: $(cat "$dir/out" "$dir/err")"
# The groups are what the formula of the mesh says, and on hosts how many a group spans.
mesh() { # expected row (axis ranks groups stride [hosts]), its groups, arguments
    local row=$1 groups=$2
    shift 2
    "$kumi" plan configs/shakespeare-char.json --set train.global_batch=4096 --mesh "$@" >"$dir/out" 2>"$dir/err"
    sed 's/  */ /g' "$dir/out" | grep -q "^ $row [a-z ]* $groups\$" && [ ! -s "$dir/err" ] || say "--mesh $*: $(cat "$dir/out" "$dir/err")"
}
mesh 'tp 2 4 1' '{0 1} {2 3} .. {6 7}' -n 8 --set parallel.tp=2
mesh 'replicate 4 2 2' '{0 2 4 6} {1 3 5 7}' -n 8 --set parallel.tp=2
two_key_heads='model={"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 256, "max_position_embeddings": 256}'
mesh 'tp 2 4 2' '{0 2} {1 3} .. {5 7}' -n 8 --set parallel.tp=4 --set "$two_key_heads"
mesh 'tpi 2 4 1' '{0 1} {2 3} .. {6 7}' -n 8 --set parallel.tp=4 --set "$two_key_heads"
mesh 'tp x tpi 4 2 1' '{0 1 2 3} {4 5 6 7}' -n 8 --set parallel.tp=4 --set "$two_key_heads"
private=(--set parallel.host_state=private)
mesh 'replicate x shard 16 1 1' '{0 1 .. 15}' -n 16 "${private[@]}" --set parallel.zero=3 --set parallel.replicate=2
mesh 'replicate 2 8 8' '{0 8} {1 9} .. {7 15}' -n 16 "${private[@]}" --set parallel.zero=3 --set parallel.replicate=2
mesh 'shard 2 4 4 2' '{0 4} {1 5} .. {3 7}' -H a:4,b:4 --set parallel.zero=2 --set parallel.host_state=shared
mesh 'local 4 2 1 1' '{0 1 2 3} {4 5 6 7}' -H a:4,b:4 --set parallel.zero=2 --set parallel.host_state=shared
"$kumi" plan configs/shakespeare-char.json -n 1 --mesh >"$dir/out" 2>&1 && [ "$(cat "$dir/out")" = 'mesh: 1 rank, no groups' ] || say "--mesh of one rank: $(cat "$dir/out")"
"$kumi" plan configs/shakespeare-char.json -n 8 --set parallel.tp=2 --mesh --json | python3 -c 'import json, sys
assert json.load(sys.stdin) == {"ranks": 8, "mesh": [{"axes": ["replicate"], "ranks": 4, "groups": 2, "stride": 2}, {"axes": ["tp"], "ranks": 2, "groups": 4, "stride": 1}]}' || say '--mesh --json'
# Which rank has what: every kind of model and layout is drawn, without texts over each other.
ranks() { # words, arguments
    local words=$1
    shift
    "$kumi" plan "$@" --mesh --picture "$dir/ranks.svg" >"$dir/out" 2>"$dir/err"
    case $? in
    0) python3 "$source/tests/cli/check_svg_words.py" "$dir/ranks.svg" "$words" >"$dir/err" 2>&1 || say "--mesh --picture $*: $(cat "$dir/err")" ;;
    *) grep -q 'this build has no cairo' "$dir/err" || say "--mesh --picture $*: $(cat "$dir/err")" ;;
    esac
    grep -q '^mesh: ' "$dir/out" || grep -q cairo "$dir/err" || say "--mesh --picture took the text away: $*"
}
small=(configs/shakespeare-char.json --set train.global_batch=64)
ranks 'rank 0|samples|0-63|norms|stored' "${small[@]}" -n 1
ranks 'pp 1|tp 1|2-3|replicate 1|all-reduce of gradients' "${small[@]}" -n 8 --set parallel.pp=2 --set parallel.tp=2
ranks 'shard 1|replicate 1|1/4|all-gather of parameters' "${small[@]}" -n 8 "${private[@]}" --set parallel.zero=3 --set parallel.replicate=2
ranks 'host 1|local 3|one copy|shard x local' "${small[@]}" -H a:4,b:4 --set parallel.zero=2 --set parallel.host_state=shared
ranks 'tpi 1|layer 0|16-31|tp x tpi' configs/shakespeare-char.json -n 4 --set parallel.tp=4 --set parallel.zero=1 --set "$two_key_heads"
ranks 'convolutions|output layer' configs/resnet20-cifar10.json -n 4 --set train.virtual_shards=4
ranks 'tokens 32-63|heads 2-3' configs/bert-tiny.json -n 4 --set parallel.tp=2 --set parallel.sp=true
ranks '16 of 1024 ranks are drawn|1023' "${small[@]}" -n 1024 --set train.global_batch=1024 --set parallel.tp=2 --set parallel.pp=2 --set train.micro_batch=1
# Every layout of some ranks: what is planned alone, and what the model refuses is a row with the reason.
# The schedule: what it prints, and that its file is read as the schedule that it came from.
pipeline=(plan configs/shakespeare-char.json -n 4 --set train.global_batch=32 --set train.virtual_shards=2 --set train.micro_batch=4 --set parallel.pp=2)
"$kumi" "${pipeline[@]}" --schedule --unit-costs --picture "$dir/schedule.svg" >"$dir/out" 2>"$dir/err" || say "--schedule: $(cat "$dir/err")"
grep -qx 'pp 0   F0>F1>.  .  B0    F2>B1    F3>B2    .  B3    O' "$dir/out" && grep -qx 'pp 1   .  F0 B0<   F1 B1<   F2 B2<   F3 B3<   .  .  O' "$dir/out" || say "--schedule: $(cat "$dir/out")"
grep -q '^bubble 20.0 % from' "$dir/out" && grep -q '</svg>' "$dir/schedule.svg" || say "--schedule: $(cat "$dir/out")"
for name in gpipe 1f1b interleaved zb-h1 zb-h2 zb-v v-half v-min; do
    "$kumi" "${pipeline[@]}" --schedule --csv --set parallel.pp_schedule=$name >"$dir/$name.csv" 2>"$dir/err" || say "$name --csv: $(cat "$dir/err")"
    "$kumi" "${pipeline[@]}" --schedule --csv --set parallel.pp_schedule="$dir/$name.csv" 2>"$dir/err" | cmp -s - "$dir/$name.csv" || say "$name read back: $(cat "$dir/err")"
    # Every row ends with the optimizer. Arrows and marks are the edges of the CSV between coordinates; the legend has an arrow of each kind.
    "$kumi" "${pipeline[@]}" --schedule --unit-costs --picture "$dir/$name.svg" --set parallel.pp_schedule=$name >"$dir/$name.txt" 2>"$dir/err" || say "$name: $(cat "$dir/err")"
    python3 - "$dir/$name" <<'P' || say "$name: transfers: $(cat "$dir/$name.txt")"
import re, sys
csv, svg, text = (open(sys.argv[1] + x).read() for x in (".csv", ".svg", ".txt"))
blocks = [(int(k), x, r) for r, row in enumerate(csv.splitlines()) for k, x in re.findall(r"(\d+)([FBIW])\d+", row)]
rank, last = {k: r for k, _, r in blocks}, max(k for k, _, _ in blocks)
sends = lambda k, x: x != "W" and 0 <= (to := k + 1 if x == "F" else k - 1) <= last and rank[to] != rank[k]
want = [sum(sends(k, x) and r == own for k, x, r in blocks) for own in (0, 1)]
assert len(re.findall(r'<path [^>]*stroke:rgb', svg)) == sum(want) + 2 > 2, (want, svg.count("stroke:rgb"))
rows = re.findall("^pp [01]  .*", text, re.M)
assert len(rows) == 2 and all(row.endswith("O") for row in rows), rows
assert [int(x) for x in re.findall(r"^[01]  .* (\d+) +[\d.]+ %", text, re.M)] == want, want
assert any(row.endswith(".. O") for row in rows) or [row.count(">") + row.count("<") for row in rows] == want, want
P
done
"$kumi" "${pipeline[@]}" --schedule --unit-costs --json | python3 -c 'import json, sys
o = json.load(sys.stdin)
assert [o["pp"], o["n_micro"], o["bubble"], o["step_bubble"]] == [2, 4, 0.2, 0.2] and [(c["in_flight"], c["transfers"]) for c in o["coordinates"]] == [(2, 4), (1, 4)], o' || say '--schedule --json'
# Activations by the published formulas, and what tensor parallelism divides of the state.
"$kumi" plan configs/plan/gpt3-175b.json -n 64 --activations --json --set parallel.tp=8 --set parallel.pp=8 --set parallel.zero=0 --set train.global_batch=64 | python3 -c '
import json, sys
o = json.load(sys.stdin)
got = {r["technique"]: r["layer_bytes"] / (2048 * 12288) for r in o["activations"]}
assert (o["tp"], o["pp"], o["layers"]) == (8, 8, 96) and abs(got["tp, sp, selective"] / (32 / 8) - 1) < 0.01 and got["full"] == 2, o
assert all(r["first_rank_bytes"] == 96 * r["layer_bytes"] for r in o["activations"]), o' || say '--activations --json'
# A step of fewer micro-batches than coordinates, and a schedule that retains all of them.
retained() { # layers options..
    "$kumi" plan configs/shakespeare-char.json -n 2 --activations --json --set parallel.pp=2 --set train.global_batch=32 "${@:2}" 2>"$dir/err" | python3 -c 'import json, sys
assert all(r["first_rank_bytes"] == float(sys.argv[1]) * r["layer_bytes"] for r in json.load(sys.stdin)["activations"])' "$1" || say "retained $*: $(cat "$dir/err")"
}
retained 4 --set train.micro_batch=4
retained 2 --set train.micro_batch=32
retained 16 --set train.micro_batch=4 --set parallel.pp_schedule=gpipe
"$kumi" plan configs/resnet20-cifar10.json --activations 2>"$dir/err" && say 'activations of a ResNet'
grep -q 'no repeated layers of a transformer' "$dir/err" || say "activations of a ResNet: $(cat "$dir/err")"
"$kumi" plan configs/shakespeare-char.json -n 2 --set parallel.tp=2 >"$dir/out" 2>&1
grep -q '^tensor parallelism: .* that 2 ranks divide: .* whole: .* (.*wpe.weight h\.\*\.ln_1.weight ' "$dir/out" || say "plan with tp: $(cat "$dir/out")"
grep -q '^memory plan: 2 ranks on one host' "$dir/out" || say "plan with tp: $(cat "$dir/out")"
whole() { # options..: KiB of the tensors that each rank has whole
    "$kumi" plan configs/shakespeare-char.json -n 2 --set parallel.tp=2 --set precision.compute=bf16 "$@" 2>&1 | sed -n 's/^tensor parallelism: parameters, \([a-z0-9]*\) gradients .* whole: \([0-9.]*\) KiB .*/\1 \2/p'
}
python3 -c 'import sys
wide, narrow = (float(s.split()[1]) for s in sys.argv[1:])
assert [s.split()[0] for s in sys.argv[1:]] == ["f32", "bf16"] and narrow < wide' "$(whole)" "$(whole --set precision.grads=bf16)" || say "plan with tp and bf16 gradients: $(whole --set precision.grads=bf16)"
# With a pipeline these are the tensors of one coordinate: it has wpe.weight or ln_f.weight, and about half of the bytes.
divided() { # ranks options..: KiB of the tensors that the ranks of tp divide; how many of these two tensors each rank has whole
    "$kumi" plan configs/shakespeare-char.json -n "$1" --set parallel.tp=2 "${@:2}" 2>&1 | python3 -c 'import re, sys
text = sys.stdin.read()
bytes, unit, names = re.search(r"^tensor parallelism: .* ranks divide: ([\d.]+) ([KMG])iB a rank; .* whole: .*\((.*)\)$", text, re.M).groups()
print(float(bytes) * 1024 ** "KMG".index(unit), sum(x in names.split() for x in ("wpe.weight", "ln_f.weight")))' 2>&1; }
both=$(divided 2) part=$(divided 4 --set parallel.pp=2 --set train.global_batch=32 --set train.micro_batch=4)
python3 -c 'import sys
(all, n_all), (own, n_own) = (map(float, s.split()) for s in sys.argv[1:])
assert n_all == 2 and n_own == 1 and 0.3 < own / all < 0.7' "$both" "$part" 2>"$dir/err" || say "plan with tp and pp: $both; $part"
# A parameter server: a limit holds for workers and servers, other reports are refused.
remote=(plan configs/shakespeare-char.json --set ps.workers=2)
"$kumi" "${remote[@]}" --json >"$dir/out" 2>"$dir/err" || say "ps: $(cat "$dir/err")"
read -r worker server < <(python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
print(*(sum(o[k].get(x + "_bytes", 0) for x in ("program", "message", "feedback")) for k in ("worker", "server")))' "$dir/out")
most=$((worker > server ? worker : server))
"$kumi" "${remote[@]}" --limit $most >"$dir/out" 2>&1 || say "ps --limit $most: $(cat "$dir/out")"
"$kumi" "${remote[@]}" --limit $((most - 1)) >"$dir/out" 2>"$dir/err"
[ $? = 13 ] && grep -qE '^kumi: error: plan: --limit: a (worker|server) needs .* more than the limit of ' "$dir/err" || say "ps --limit: $(cat "$dir/err")"
for report in --stages --layouts --roofline --schedule '--memory -H a:1,b:1'; do
    # shellcheck disable=SC2086
    "$kumi" "${remote[@]}" $report >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] && grep -q '^kumi: error: plan: ps.workers: 2; a parameter server has only the memory plan' "$dir/err" || say "ps $report: $(cat "$dir/err")"
done
"$kumi" "${remote[@]}" -n 7 2>&1 | grep -qx 'kumi: error: plan: -n: 7, but ps.workers is 2' || say 'ps -n 7'
# modelled: what the nodes of the stages cost, which recomputation adds to; untied from the layers, equal layers cost the same
costs() { # settings..
    "$kumi" "${pipeline[@]}" --schedule --json --set parallel.stages='[1, 3]' "$@" | python3 -c 'import json, sys
o = json.load(sys.stdin)
x = [c for k in o["coordinates"] for c in k["costs"]]
print(*(round(c[k] / x[0]["f"], 6) for c in x for k in "fiw"), o["bubble"])'; }
python3 - "$(costs)" "$(costs --set memory.recompute=full)" <<'P' || say "modelled costs: $(costs)"
import sys
(f0, i0, w0, f1, i1, w1, idle), (g0, j0, v0, g1, j1, v1, _) = ([float(x) for x in a.split()] for a in sys.argv[1:])
assert (f0, f1) == (g0, g1) and w0 <= v0 and w1 <= v1 and 3 * f0 < f1 < 4 * f0, sys.argv # the last stage has the output layer too
assert f0 / 2 < j0 - i0 < f0 and 3 * f0 / 2 < j1 - i1 < f1, sys.argv # forward again, but for what no gradient reads
assert 0.8 < i0 < 2 and 0.5 < w0 <= 1 and idle > 0.2, sys.argv
P
# auto: the shortest within the limit, which the check accepts
auto=(--set parallel.pp=4 --set train.global_batch=32 --set train.virtual_shards=1 --set train.micro_batch=4 --set parallel.pp_schedule=auto)
bubble() { "$kumi" plan configs/shakespeare-char.json -n 4 "${auto[@]}" "$@" --schedule --json | python3 -c 'import json, sys
o = json.load(sys.stdin)
print(o["schedule"], round(o["step_bubble"], 3), max(c["in_flight"] for c in o["coordinates"]) * 4 // o["n_stages"])'; }
[ "$(bubble)" = 'zb-h1 0.186 4' ] || say "auto: $(bubble)"
[ "$(bubble --set parallel.pp_in_flight=2)" = 'list 0.414 2' ] || say "auto, 2 in flight: $(bubble --set parallel.pp_in_flight=2)"
# within bytes: more micro-batches in flight where fewer bytes are held; a transfer that takes time; no schedule fits
[ "$(bubble --set parallel.pp_activation_gib=0.01)" = 'list 0.212 4' ] || say "auto, 0.01 GiB: $(bubble --set parallel.pp_activation_gib=0.01)"
[ "$(bubble --set parallel.pp_activation_gib=0.005)" = 'list 0.426 2' ] || say "auto, 0.005 GiB: $(bubble --set parallel.pp_activation_gib=0.005)"
[ "$(bubble --set parallel.pp_flop_per_byte=1000)" = 'list 0.424 4' ] || say "auto, 1000 FLOP per byte: $(bubble --set parallel.pp_flop_per_byte=1000)"
for gib in 0.01 0.005; do
    "$kumi" plan configs/shakespeare-char.json -n 4 "${auto[@]}" --schedule --json --set parallel.pp_activation_gib=$gib | python3 -c 'import json, sys
assert all(0 < c["activation_bytes"] <= float(sys.argv[1]) * 2**30 for c in json.load(sys.stdin)["coordinates"])' $gib || say "auto: more than $gib GiB"
done
"$kumi" check configs/shakespeare-char.json -n 4 "${auto[@]}" --set parallel.pp_activation_gib=0.005 >"$dir/out" 2>&1 || say "check of auto, 0.005 GiB: $(cat "$dir/out")"
"$kumi" plan configs/shakespeare-char.json -n 4 "${auto[@]}" --schedule --set parallel.pp_activation_gib=0.0005 >"$dir/out" 2>&1 && say 'auto fits into 0.0005 GiB'
grep -q 'parallel.pp_activation_gib: 0.0005; no schedule fits: the one that needs fewest bytes, list, holds 0.00[0-9]* GiB of activations on coordinate [0-3] of axis pp ([0-9]* bytes, the limit is 536871); raise' "$dir/out" || say "auto, 0.0005 GiB: $(cat "$dir/out")"
slow() { "$kumi" plan configs/shakespeare-char.json -n 4 "${auto[@]}" --set parallel.pp_schedule=1f1b --schedule --set parallel.pp_flop_per_byte="$1"; }
slow 1000 | grep -q '^a transfer between stages takes at most [0-9.]* units$' && ! slow 0 | grep -q '^a transfer' || say "transfers: $(slow 1000)"
"$kumi" check configs/shakespeare-char.json -n 4 "${auto[@]}" --set parallel.pp_in_flight=2 >"$dir/out" 2>&1 || say "check of auto: $(cat "$dir/out")"
# a whole section at once, with null where a key has its default; shard alone means stage 3
section='{"pp": 2, "replicate": 1, "shard": 2, "tp": 2, "sp": true, "loss_parallel": true, "pp_schedule": "1f1b", "virtual_stages": null, "host_state": "auto",
    "plan": {"h.*.attn.c_attn": "col", "h.*.attn.c_proj": "row", "h.*.mlp.c_fc": "col", "h.*.mlp.c_proj": "row", "wte": "vocab", "ln_*": "seq"}}'
"$kumi" check configs/shakespeare-char.json -n 8 --set parallel="$section" --set train.micro_batch=1 >"$dir/out" 2>&1 || say "a section: $(cat "$dir/out")"
grep -q '^accepted: 8 ranks in 2 classes' "$dir/out" || say "a section: $(cat "$dir/out")"
"$kumi" plan configs/shakespeare-char.json -n 8 --set parallel="$section" --set train.micro_batch=1 >"$dir/out" 2>&1 || say "plan of a section: $(cat "$dir/out")"
grep -qx 'zero 3: pp 2 x 1 replica x 2 shards x tp 2' "$dir/out" && grep -qx "  parallel.zero 3: the default with parallel.shard, as FSDP's FULL_SHARD; .* gathered once a step and stay" "$dir/out" ||
    say "plan of a section: $(cat "$dir/out")"
layouts=(plan configs/shakespeare-char.json -n 4 --set train.global_batch=16 --set train.virtual_shards=4)
"$kumi" "${layouts[@]}" --layouts --json >"$dir/layouts.json" 2>"$dir/err" || say "--layouts: $(cat "$dir/err")"
"$kumi" "${layouts[@]}" --set parallel.host_state=private --set parallel.zero=3 --json >"$dir/zero3.json" 2>"$dir/err" || say "zero 3: $(cat "$dir/err")"
"$kumi" "${layouts[@]}" --set parallel.pp=2 --schedule --json >"$dir/pp2.json" 2>"$dir/err" || say "pp 2: $(cat "$dir/err")"
"$kumi" "${layouts[@]}" --set parallel.tp=2 --set parallel.zero=1 --json >"$dir/tp2.json" 2>"$dir/err" || say "tp 2: $(cat "$dir/err")"
"$kumi" "${layouts[@]}" --set parallel.host_state=private --set parallel.zero=3 --set parallel.persist_below=0 --set parallel.reshard_after_forward=2 --json >"$dir/halves.json" 2>"$dir/err" || say "halves: $(cat "$dir/err")"
"$kumi" "${layouts[@]}" --set parallel.pp=2 --set parallel.tp=2 >"$dir/out" 2>&1 || say "pp x tp: $(cat "$dir/out")"
grep -qx 'zero 0: pp 2 x 1 replica x 1 shard x tp 2' "$dir/out" || say "pp x tp: $(grep '^zero' "$dir/out")"
python3 - "$dir" <<'P' || failed=1
import json, sys
dir = sys.argv[1]
axes = {(r["exchange"], *r["axes"], r["ranks"]): r.get("group") for r in json.load(open(dir + "/tp2.json"))["sharding"]["a_step"]}
assert axes == {("all_reduce", "tp", 2): None, ("reduce_scatter", "shard", 2): None, ("all_gather", "shard", 2): None}, axes
axes = {(r["exchange"], *r["axes"], r["ranks"], r.get("group")) for r in json.load(open(dir + "/halves.json"))["sharding"]["a_step"]}
assert ("all_gather", "shard", 2, 2) in axes and ("all_gather", "shard", 4, None) in axes, axes
piped = json.load(open(dir + "/pp2.json"))
row = {r["layout"]: r for r in json.load(open(dir + "/layouts.json"))["layouts"]}
alone = json.load(open(dir + "/zero3.json"))
assert row["zero 3"]["rank_bytes"] == alone["host_bytes"] // 4, row
assert row["zero 3"]["data_bytes"] == sum(x["ring_bytes"] for x in alone["sharding"]["a_step"]), row
assert row["data parallel"]["state_bytes"] > row["zero 1"]["state_bytes"], row
assert row["pp 2 x dp 2"]["pp_bytes"] > 0 and abs(row["pp 2 x dp 2"]["bubble"] - piped["step_bubble"]) < 1e-9, row
assert 0.3 < piped["step_bubble"] < 0.4 and 0.8 < piped["work"][0] <= 1 <= piped["work"][1] < 1.2, piped
assert 0 < row["tp 2 x pp 2"]["state_bytes"] < row["tp 2 x dp 2"]["state_bytes"] and row["tp 2 x pp 2"]["tp_bytes"] > 0, row
assert row["tp 2 x dp 2"]["pp_bytes"] == 0 == row["tp 2 x dp 2"]["bubble"], row
assert row["tp 2 x dp 2"]["tp_bytes"] > 0 and row["data parallel"]["tp_bytes"] == 0, row
P
# A rank in the middle of a pipeline sends both ways; the head makes the last coordinate slow, the micro-batches in flight the first one large.
"$kumi" "${layouts[@]}" --layouts --json --set model.tie_word_embeddings=false 2>"$dir/err" | python3 -c 'import json, sys
row = {r["layout"]: r for r in json.load(sys.stdin)["layouts"]}
assert abs(row["pp 4"]["pp_bytes"] / row["pp 2 x dp 2"]["pp_bytes"] - 4) < 0.1, row  # and the sums of the step' || say "--layouts, bytes of a pipeline: $(cat "$dir/err")"
piped=("${layouts[@]}" --set parallel.pp=4 --set train.micro_batch=1 --set model.tie_word_embeddings=false --set model.vocab_size=512)
for report in --roofline --memory; do
    "$kumi" "${piped[@]}" $report --json 2>"$dir/err" | python3 -c 'import json, sys; print(json.load(sys.stdin)["coordinate"])' || say "$report: $(cat "$dir/err")"
done >"$dir/out"
[ "$(tr '\n' ' ' <"$dir/out")" = '3 0 ' ] || say "the slowest and the largest coordinate: $(cat "$dir/out")"
"$kumi" "${piped[@]}" 2>"$dir/err" | grep -qx 'programs of coordinate 0 of axis pp, which map the most memory' || say "coordinate of a memory plan: $(cat "$dir/err")"
# What a configuration says of its layout does not count; a row that exceeds a budget says so.
"$kumi" "${layouts[@]}" --layouts --json --set parallel.pp=2 --set parallel.pp_schedule=gpipe --set parallel.stages='[1, 3]' --set parallel.zero=3 2>"$dir/err" | cmp -s - "$dir/layouts.json" || say "--layouts of another layout: $(cat "$dir/err")"
"$kumi" "${layouts[@]}" --layouts --json --set parallel.tp=2 --set parallel.sp=true 2>"$dir/err" | cmp -s - "$dir/layouts.json" || say "--layouts of tp 2: $(cat "$dir/err")"
budget=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["layouts"][7]["rank_bytes"] / 2**30)' "$dir/layouts.json")
"$kumi" "${layouts[@]}" --layouts --set memory.recompute="{\"budget_gib\": $budget}" >"$dir/out" 2>"$dir/err" && grep -q '^data parallel *refused: memory.recompute: budget_gib' "$dir/out" && grep -q '^tp 4 sp .*activations between the layers do not fit$' "$dir/out" || say "--layouts within a budget: $(cat "$dir/out" "$dir/err")"
"$kumi" plan configs/resnet20-cifar10.json -n 4 --layouts --set train.virtual_shards=4 >"$dir/out" 2>"$dir/err" && grep -q '^tp 4 .* 0 B .*never: no layer of this model can be divided$' "$dir/out" && grep -q '^tp 4 sp *refused: placement: parallel.sp: no parameter of this model can be split' "$dir/out" || say "--layouts of a ResNet: $(cat "$dir/out" "$dir/err")"
for bad in '--limit much' '--limit 1GiB --roofline' '--optimizer adam' '--zero 3' '--params 1e9'; do
    # shellcheck disable=SC2086
    "$kumi" "${plan[@]}" $bad >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] && [ "$(grep -c '^kumi: error: ' "$dir/err")" = 1 ] && [ ! -s "$dir/out" ] || say "$bad: $(cat "$dir/err")"
done
for bad in '' '--params many' '--params 1e9 --roofline' '--params 1e9 -n 6 --replicate 4'; do
    # shellcheck disable=SC2086
    "$kumi" plan $bad >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] && [ "$(grep -c '^kumi: error: ' "$dir/err")" = 1 ] && [ ! -s "$dir/out" ] || say "plan $bad: $(cat "$dir/err")"
done
for bad in '--picture plan.gif' '--picture plan' '--picture a.svg --axis bytes' '--axis time' '--stages --picture a.svg --axis time' '--roofline --memory' '--roofline --picture a.svg' '--stages --picture plan.gif' '--stages --memory' '--stages --roofline' '--mesh --memory' '--mesh --limit 1GiB' '--mesh --picture a.gif' '--mesh --picture a.svg --axis time' '--layouts --stages' '--layouts -n 0' '--schedule' '--unit-costs' '--schedule --memory' '--activations --memory' '--csv' '--schedule --csv --json --set parallel.pp=2'; do
    # shellcheck disable=SC2086
    "$kumi" "${plan[@]}" $bad >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] && [ "$(grep -c '^kumi: error: ' "$dir/err")" = 1 ] && [ ! -s "$dir/out" ] || say "$bad: $(cat "$dir/err")"
done
exit $failed
