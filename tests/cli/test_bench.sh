#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi bench: the machine is named, medians lie between min and max, filters filter; scaling's parts add up to the step;
# what cannot be is refused before it runs; a trial keeps no checkpoint.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
"$kumi" bench peak --threads 1 >"$dir/peak" || say 'peak failed'
head -1 "$dir/peak" | grep -qE ', [0-9]+ cores?, [a-z0-9]+; 1 rank x 1 thread$' || say "peak names no machine: $(cat "$dir/peak")"
for row in f32 bf16 stream read write copy triad 'first touch'; do
    grep -qE "^$row .* G(flop|bytes)/s" "$dir/peak" || say "peak has no row $row: $(cat "$dir/peak")"
done
grep -qE '^barrier .* ns$' "$dir/peak" || say "peak has no barrier: $(cat "$dir/peak")"
cp "$KUMI_CACHE/peak.json" "$dir/before"
[ "$("$kumi" bench peak --quick --threads 1 --json | grep -c '"unit":"flop/s"')" = 2 ] || say 'peak --quick: not two matrix peaks'
cmp "$KUMI_CACHE/peak.json" "$dir/before" || say 'peak --quick stored its figures'
"$kumi" bench op layer_norm_d --dtype bf16 --threads 1 --json >"$dir/op" || say 'op failed'
"$kumi" bench op exact_sum --dtype f32 --threads 1 >"$dir/cache.txt" || say 'op exact_sum failed'
grep -q '^exact_sum .* cache ' "$dir/cache.txt" || say "exact_sum is not of the cache: $(cat "$dir/cache.txt")"
small=(configs/nanogpt-cpu.json --set model.n_layer=1 --steps 12)
for weak in '' --weak; do
    # shellcheck disable=SC2086
    "$kumi" bench scaling "${small[@]}" -n 1,2 --json $weak >"$dir/scaling$weak" 2>"$dir/err" || say "scaling $weak: $(cat "$dir/err")"
done
python3 - "$dir" <<'P' || failed=1
import json, sys
rows = lambda name: [json.loads(line) for line in open(sys.argv[1] + "/" + name)]
op = rows("op")
assert [r["what"] for r in op] == ["layer_norm_dx", "layer_norm_dgb"], op
for r in op:
    assert r["dtype"] == "bf16" and r["cpu"] and r["isa"] and r["cores"] >= 1 and (r["ranks"], r["threads"]) == (1, 1), r
    assert 0 < r["min_ns"] <= r["p50_ns"] <= r["max_ns"] and r["runs"] >= 5 and r["operands"] == "memory", r
for name, tokens in ("scaling", [768, 768]), ("scaling--weak", [768, 1536]):
    one, two = rows(name)
    assert [one["tokens"], two["tokens"]] == tokens and (one["ranks"], two["ranks"]) == (1, 2), (one, two)
    assert one["efficiency"] == 1 and len(two["rank_wait_ms"]) == 2, (one, two)
    ideal = one["step_ms"] * (1 if "weak" in name else 0.5)
    assert abs(two["ideal_ms"] / ideal - 1) < 1e-4 and abs(two["efficiency"] - ideal / two["step_ms"]) < 1e-4, two
    parts = sum(two[k] for k in ("ideal_ms", "comm_ms", "wait_ms", "cores_ms", "kernels_ms"))
    assert abs(parts / two["step_ms"] - 1) < 1e-4 and two["p10_ms"] <= two["step_ms"] <= two["p90_ms"], two
P
# what the loss counts: images, target tokens of sentence pairs; a batch of tokens grows where the batch of a rank stands still
python3 - "$dir" <<'P'
import random, sys
random.seed(3)
with open(sys.argv[1] + "/train.bin", "wb") as f:
    f.write(b"".join(bytes([i % 2] + [random.randrange(256) for _ in range(3072)]) for i in range(16)))
with open(sys.argv[1] + "/en", "w") as en, open(sys.argv[1] + "/ja", "w") as ja:
    for _ in range(400):
        words = [f"w{random.randrange(9)}" for _ in range(random.randint(1, 7))]
        print(*words, file=en), print(*words, *words[:2], file=ja)
P
cat >"$dir/image.json" <<J
{"model": {"model_type": "resnet", "depth": 8, "width": 4, "num_classes": 2}, "data": {"kind": "cifar10", "train": "$dir/train.bin", "val_fraction": 0},
 "train": {"steps": 9, "global_batch": 6, "virtual_shards": 2}}
J
cat >"$dir/pairs.json" <<J
{"model": {"model_type": "transformer", "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "ffn_dim": 8, "max_positions": 16},
 "data": {"train": "$dir/en", "train_target": "$dir/ja", "tokenizer": "word", "target_tokenizer": "word", "batch_tokens": 100, "shapes": 3, "max_source_len": 12, "max_target_len": 12},
 "train": {"steps": 9, "virtual_shards": 2, "log_every": 1}}
J
"$kumi" bench data "$dir/image.json" --json | python3 -c 'import json, sys; d = json.load(sys.stdin); assert d["step_samples"] == 6 and d["samples_per_s"] > 0 and set(d) == {"steps", "step_samples", "samples_per_s", "p50_us", "max_us"}, d' ||
    say 'bench data of images'
for config in image pairs; do
    "$kumi" bench scaling "$dir/$config.json" -n 1,2 --steps 9 --json >"$dir/scaling-$config" 2>"$dir/err" || say "scaling $config: $(cat "$dir/err")"
done
"$kumi" bench scaling "$dir/image.json" -n 1 --steps 9 2>"$dir/err" | grep -q '^ranks *samples *samples/s ' || say "scaling image: no samples: $(cat "$dir/err")"
"$kumi" bench scaling "$dir/pairs.json" -n 1,2 --weak --steps 9 --json >"$dir/scaling-weak-pairs" 2>"$dir/err" || say "scaling --weak pairs: $(cat "$dir/err")"
for tokens in 100 200; do
    "$kumi" train "$dir/pairs.json" --set data.batch_tokens=$tokens --out "$dir/pairs-$tokens" >/dev/null 2>"$dir/err" || say "pairs: $(cat "$dir/err")"
done
python3 - "$dir" <<'P' || failed=1
import json, sys
rows = lambda name: [json.loads(line) for line in open(sys.argv[1] + "/" + name)]
def counted(name): # the median behind the first three steps, as the training itself counts
    return sorted([r["tokens"] for r in rows(name + "/metrics.jsonl") if "loss" in r][3:])[3]
one, two = counted("pairs-100"), counted("pairs-200")
assert [r["samples"] for r in rows("scaling-image")] == [6, 6] and all("tokens" not in r for r in rows("scaling-image"))
assert one < two and [r["tokens"] for r in rows("scaling-pairs")] == [one, one], (one, rows("scaling-pairs"))
assert [r["tokens"] for r in rows("scaling-weak-pairs")] == [one, two], (one, two, rows("scaling-weak-pairs"))
assert all(r["tps"] > 0 for name in ("scaling-pairs", "scaling-weak-pairs", "scaling-image") for r in rows(name))
P
"$kumi" bench op linear.proj --tune --dtype bf16 --threads 1 --json >"$dir/tune" || say 'op --tune failed'
"$kumi" bench op linear.proj --tune --dtype f32 --threads 1 | grep -Eq '^linear.proj +f32 +[0-9]+x[0-9]+x[0-9]+ ' || say 'op --tune: no table'
python3 - "$dir/tune" <<'P' || failed=1
import json, sys
row, = [json.loads(line) for line in open(sys.argv[1])]
assert row["what"] == "linear.proj" and row["dtype"] == "bf16" and 1 < row["tiles"] <= 5, row
assert row["min_ns"] >= row["fastest_ns"] > 0 and row["ratio"] >= 1, row
P
# one rank is one rank, by each of the ways to ask for it, and has all rows but ping_pong
for one in '-n 1' '--threads 1' '-H a:1 --rsh none'; do
    # shellcheck disable=SC2086
    "$kumi" bench comm barrier $one --json >"$dir/one" 2>"$dir/err" && grep -q '"ranks":1,' "$dir/one" || say "comm $one: $(cat "$dir/one" "$dir/err")"
done
"$kumi" bench comm -n 1 --bytes 4096 >"$dir/one" 2>"$dir/err" && grep -q '^all_to_all ' "$dir/one" && ! grep -q ping_pong "$dir/one" || say "comm -n 1: $(cat "$dir/one" "$dir/err")"
refused() { # what the message holds, then the command
    want=$1
    shift
    "$kumi" bench "$@" >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] && grep -qe "$want" "$dir/err" && [ ! -s "$dir/out" ] || say "$*: $(cat "$dir/out" "$dir/err")"
}
refused 'virtual_shards: 2 on 4 ranks' scaling "${small[@]}" -n 1,4
refused 'a configuration is missing' scaling -n 1
refused 'give 8 to' scaling configs/nanogpt-cpu.json --steps 3
refused 'no op has a name with this prefix' op nothing
refused 'f32, bf16 or f16' op --dtype f64
refused '--tune applies to op only' peak --tune
refused '--weak does not apply to it' peak --weak
refused '--quick does not apply to it' data configs/nanogpt-cpu.json --quick
refused '--quick applies to peak only' op --quick
refused '-n does not apply to it' data configs/nanogpt-cpu.json -n 2
refused '--bytes does not apply to it' scaling configs/nanogpt-cpu.json --bytes 8
refused '--threads and -n exclude each other' comm -n 2 --threads 2
refused '--threads and -H exclude each other' comm -H a:2 --rsh none --threads 2
refused 'give a multiple of 4' comm -n 2 --bytes 7
[ "$(wc -l <"$dir/err")" = 1 ] || say "both ranks say it: $(cat "$dir/err")"
"$kumi" train configs/nanogpt-cpu.json -n 2 --set model.n_layer=1 --trial --until 5 --out "$dir/run" >"$dir/out" 2>"$dir/err" || say "--trial: $(cat "$dir/err")"
[ -s "$dir/run/rank-1.json" ] && [ ! -e "$dir/run/checkpoints" ] && [ ! -s "$dir/out" ] || say "--trial left $(ls "$dir/run") and said $(cat "$dir/out")"
exit $failed
