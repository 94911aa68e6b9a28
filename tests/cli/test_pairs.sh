#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sentence pairs and the encoder-decoder Transformer: equal bits in every layout, over several batch shapes; readers of the plan; bad pairs in one line.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
python3 - "$dir" <<'P'
import random, sys
random.seed(5)
for split, n in ("train", 150), ("val", 37):
    with open(f"{sys.argv[1]}/{split}.en", "w") as en, open(f"{sys.argv[1]}/{split}.ja", "w", encoding="utf-8") as ja:
        for _ in range(n):
            words = [random.randrange(30) for _ in range(random.randint(1, 11))]
            en.write(" ".join(f"e{w}" for w in words) + "\n")
            ja.write(" ".join(f"日{w * 7 % 31}" for w in words[::-1] for _ in range(1 + w % 2)) + "\n")
P
cat >"$dir/pairs.json" <<J
{ "model": {"model_type": "transformer", "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "num_heads": 3, "ffn_dim": 40, "max_positions": 32,
            "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1, "norm_first": true},
  "data": {"train": "$dir/train.en", "train_target": "$dir/train.ja", "val": "$dir/val.en", "val_target": "$dir/val.ja",
           "tokenizer": "word", "target_tokenizer": "word", "batch_tokens": 200, "shapes": 4, "last_batch": "short", "max_source_len": 24, "max_target_len": 31},
  "train": {"steps": 14, "virtual_shards": 4, "eval_every": 7, "log_every": 1, "label_smoothing": 0.1},
  "optimizer": {"type": "adam", "lr": 2.0, "betas": [0.9, 0.98], "eps": 1e-9},
  "schedule": {"type": "noam", "d_model": 24, "warmup_steps": 20},
  "checkpoint": {"every": 7, "keep": 9} }
J
run() { # name options..: a run whose state must be that of the first with this name's letters
    local out=$dir/run.$1
    shift
    timeout 120 "$kumi" train "$dir/pairs.json" --out "$out" "$@" >"$dir/log" 2>&1 || say "$out $*: $(tail -1 "$dir/log")"
}
sum() { "$kumi" ckpt digest "$dir/run.$1"; python3 -c '
import json, sys
for line in open(sys.argv[1]):
    x = json.loads(line); print(x["step"], x.get("loss"), x.get("val_loss"), x.get("grad_norm"), x.get("tokens"))' "$dir/run.$1/metrics.jsonl"; }
same() { [ "$(sum "$1")" = "$(sum "$2")" ] || say "$1 and $2 differ: $(diff <(sum "$1") <(sum "$2") | head -3)"; }
differ() { [ "$(sum "$1")" != "$(sum "$2")" ] || say "$1 and $2 are equal"; }
share=(--set parallel.share_host_state=false)

run one
grep -qE 'pairs in 4 shards x 1, 4 shapes: [0-9]+ x [0-9]+ x [0-9]+ \([0-9]+ steps\).*% padding' "$dir/log" || say "header: $(head -1 "$dir/log")"
run two -n 2 --set train.threads=2
run four -n 4 --set parallel.bucket_mb=0.004
run replica -n 2 "${share[@]}" --set parallel.overlap=false
run async -n 2 --set checkpoint.async=true --set checkpoint.every=2
run async.replica -n 2 "${share[@]}" --set checkpoint.async=true --set checkpoint.every=2
run again -n 2 --set memory.recompute=selective --set checkpoint.async=true # what is recomputed depends on the shape
for other in two four replica async async.replica again; do same one $other; done
for at in 2 4 8; do # of the async run, in other shapes than the newest: each is what a synchronous run had then
    timeout 60 "$kumi" train "$dir/pairs.json" --out "$dir/run.at$at" --until $at --set checkpoint.every=0 >/dev/null 2>&1
    [ "$("$kumi" ckpt digest "$dir/run.at$at")" = "$("$kumi" ckpt digest "$dir/run.async/checkpoints/step-$(printf %08d $at)")" ] ||
        say "the checkpoint of step $at, written meanwhile, differs"
done
run resumed --until 5 -n 4
run resumed --until 9 --resume "${share[@]}" -n 2
run resumed --resume
[ "$("$kumi" ckpt digest "$dir/run.one")" = "$("$kumi" ckpt digest "$dir/run.resumed")" ] || say 'resumed elsewhere: another state'

run bf16 --set precision.compute=bf16
run bf16.four -n 4 --set precision.compute=bf16 --set train.threads=2
same bf16 bf16.four
differ one bf16
run f16 --set precision.compute=f16
run f16.four -n 4 --set precision.compute=f16 --set train.threads=2
same f16 f16.four
differ bf16 f16
for last in drop wrap; do # rows instead of tokens, two micro-batches of a shard
    some=(--set data.last_batch=$last --set data.batch_tokens=null --set train.global_batch=16 --set train.micro_batch=2 --set data.shapes=3 --until 11)
    run $last "${some[@]}"
    run $last.four "${some[@]}" -n 4
    same $last $last.four
done
differ drop wrap
one_shape=(--set data.shapes=1 --set data.length_multiple=4 --set data.tokenizer=byte --set data.target_tokenizer=null --set data.batch_tokens=800 --set model.share_embeddings=true --set data.max_source_len=90 --set data.max_target_len=99 --set model.max_positions=100 --until 4)
run shared "${one_shape[@]}"
run shared.four "${one_shape[@]}" -n 4
same shared shared.four
# in tokens there is no number of pairs that ranks and shards would have to divide
small=(--set data.shapes=2 --until 3)
for v in 3 5 6; do
    run v$v "${small[@]}" --set train.virtual_shards=$v
done
run v3.three "${small[@]}" --set train.virtual_shards=3 -n 3
run v3.null "${small[@]}" --set train.virtual_shards=null -n 3
run v6.three "${small[@]}" --set train.virtual_shards=6 -n 3
for other in v3.three v3.null v6.three; do same ${other%.*} $other; done
# the lengths of shapes are multiples of tp_exact, whatever tp and sp are
exact=(--set parallel.tp_exact=2 --set model.num_heads=4)
run exact "${exact[@]}" --until 3
run exact.parts "${exact[@]}" --until 3 -n 2 --set parallel.tp=2 --set parallel.sp=true
same exact exact.parts
"$kumi" plan "$dir/pairs.json" --json --set parallel.tp_exact=3 --set model.ffn_dim=36 --set data.length_multiple=2 2>"$dir/log" | python3 -c '
import json, sys
shapes = json.load(sys.stdin)["batch"]["shapes"]
assert len(shapes) > 2 and all(s["source_len"] % 6 == s["target_len"] % 6 == 0 for s in shapes), shapes' || say "lengths with tp_exact: $(cat "$dir/log")"
free=(--set data.shapes=2 --set parallel.order=free --set train.virtual_shards=null)
run free "${free[@]}" -n 2 --until 3
run free "${free[@]}" -n 3 --until 5 --resume
run free "${free[@]}" -n 1 --until 6 --resume
run twice "${small[@]}" --set train.virtual_shards=3 --set train.accumulation=2 -n 3
grep -q 'pairs in 3 shards x 2, 2 shapes' "$dir/log" || say "accumulation: $(head -1 "$dir/log")"
python3 -c 'import json, sys; n = json.load(open(sys.argv[1]))["numerics"]; assert (n["train.global_batch"], n["train.micro_batch"]) == (6, 1), n' "$dir/run.twice/checkpoints/step-00000003/manifest.json" || say 'accumulation in the manifest'
"$kumi" plan "$dir/pairs.json" -n 2 --set memory.budget_gib=0.001 >"$dir/plan" 2>&1 # alternatives name no key that is refused
grep -q 'batch_tokens sets' "$dir/plan" && say "plan: $(cat "$dir/plan")"

evaluate() { timeout 60 "$kumi" eval "$dir/run.one" --json "$@" 2>"$dir/log" || say "eval $*: $(cat "$dir/log")"; }
one=$(evaluate)
for n in 2 3 4 5; do
    got=$(evaluate -n $n)
    [ "$got" = "$one" ] || say "eval -n $n: $got, by one rank $one"
done
python3 - "$dir/run.one/metrics.jsonl" "$one" <<'P' || say "eval: not the training's own validation loss: $one"
import json, sys
last = [x["val_loss"] for x in map(json.loads, open(sys.argv[1])) if x.get("val_loss") is not None][-1]
assert abs(json.loads(sys.argv[2])["val_loss"] - last) < 1e-12, last
P

config=("$dir/pairs.json" -n 2)
got=$("$kumi" plan "${config[@]}" 2>&1) || say "plan: $got"
[[ $got == *"4 shapes: "*"; planned: "* ]] || say "plan: $got"
got=$("$kumi" plan "${config[@]}" --json 2>&1) || say "plan --json: $got"
python3 - "$got" "$("$kumi" data verify "$dir/pairs.json" 2>&1)" <<'P' || say 'plan --json: not the shapes of the data'
import json, re, sys
shapes = json.loads(sys.argv[1])["batch"]["shapes"]
wanted = [tuple(map(int, s)) for s in re.findall(r"(\d+) x (\d+) x (\d+) \(", sys.argv[2])]
assert [(s["rows"], s["source_len"], s["target_len"]) for s in shapes if s["split"] == "train"] == wanted and len(wanted) == 4, (shapes, wanted)
assert sum(s["split"] == "val" for s in shapes) > 0 and sum(s["is_shown"] for s in shapes) == 1, shapes
P
"$kumi" plan "${config[@]}" --roofline >/dev/null || say 'plan --roofline'
activations() { # encoder layers, decoder layers: the bytes of all of them
    "$kumi" plan "$dir/pairs.json" --activations --json --set model.encoder_layers="$1" --set model.decoder_layers="$2" 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["activations"][0]["first_rank_bytes"])'
}
python3 -c 'import sys
one, encoder, decoder = map(float, sys.argv[1:])
assert one < encoder < decoder < 2 * one, sys.argv' "$(activations 1 1)" "$(activations 2 1)" "$(activations 1 2)" || say 'plan --activations: encoder and decoder'
got=$("$kumi" graph "${config[@]}" --after fuse 2>&1) || say "graph: $got"
[[ $got == *attention_kv* ]] || say 'graph: no attention'
"$kumi" graph "${config[@]}" >/dev/null || say 'graph: no program'
got=$("$kumi" data verify "$dir/pairs.json" 2>&1) || say "data verify: $got"
[[ $got == *"150 lines"*"4 shapes: "* ]] || say "data verify: $got"
got=$("$kumi" bench data "$dir/pairs.json" 2>&1) || say "bench data: $got"
[[ $got == *"target tokens/s"* ]] || say "bench data: $got"
run profile -n 2 --profile=2-9 --profile-by shape
python3 - "$dir/run.profile" <<'P' || say 'profile'
import json, re, sys
text = open(sys.argv[1] + "/profile.txt").read()
rows = re.findall(r"^attention_kv \S+ (.*?) {2,}([\d.e-]+) +[\d.]+ ", text, re.M)
assert len(rows) > 3, text  # steps of several shapes, each under its own
layers = 4  # 2 of encoder, self and cross of the decoder; 2 shards a rank: 8 calls a step in the mean
assert abs(sum(float(calls) for _, calls in rows) - 2 * layers) < 1e-3, rows
json.load(open(sys.argv[1] + "/profile.trace.json"))
P

expect() { # code text command..
    local code=$1 text=$2 got
    shift 2
    got=$(timeout 60 "$kumi" "$@" --out "$dir/refused" 2>&1 >/dev/null)
    local is=$?
    if [ $is -ne "$code" ] || ! printf '%s' "$got" | grep -qF -- "$text" || [ "$(printf '%s\n' "$got" | grep -c '^kumi: error:')" != 1 ]; then
        say "kumi $*: wanted $code: $text; got $is: $got"
    fi
}
head -140 "$dir/train.ja" >"$dir/less.ja"
sed '7s/.*//' "$dir/train.en" >"$dir/empty.en"
{ sed 3q "$dir/train.ja"; printf '\xff\xfe\n'; sed 1,4d "$dir/train.ja"; } >"$dir/bytes.ja"
sed '9s/.*/a b c d e f g h i j k l m/' "$dir/train.en" >"$dir/long.en"
train=(train "$dir/pairs.json")
for key in global_batch micro_batch; do
    expect 2 "train.$key: 16; data.batch_tokens sets the size of a batch; leave one of the two out" "${train[@]}" --set train.$key=16
done
expect 2 'optimizer.lr_scaling: {"rule":"linear","base_batch":32}; it counts sentence pairs, and data.batch_tokens sets the size of a batch; use null' \
    "${train[@]}" --set 'optimizer.lr_scaling={"rule": "linear", "base_batch": 32}'
expect 3 "150" "${train[@]}" --set data.train_target="$dir/less.ja"
expect 3 "140" "${train[@]}" --set data.train_target="$dir/less.ja"
expect 3 "$dir/none.ja: No such file" "${train[@]}" --set data.train_target="$dir/none.ja"
expect 2 "data.train_target: 0; one file for each of the 1 sources" "${train[@]}" --set data.train_target=null
expect 2 "data.val_target: 0; one file for each of the 1 sources" "${train[@]}" --set data.val_target=null
expect 3 "$dir/empty.en:7" "${train[@]}" --set data.train="$dir/empty.en" --set data.on_empty=error
expect 3 "$dir/bytes.ja:4" "${train[@]}" --set data.train_target="$dir/bytes.ja"
expect 3 "$dir/long.en:9" "${train[@]}" --set data.train="$dir/long.en" --set data.max_source_len=12 --set data.on_long=error
expect 2 'src_vocab_size 20' "${train[@]}" --set model.src_vocab_size=20
expect 2 'tgt_vocab_size 20' "${train[@]}" --set model.tgt_vocab_size=20
expect 2 'data.seq_len: 64; pairs have data.max_source_len and data.max_target_len' "${train[@]}" --set data.seq_len=64
expect 2 'model.share_embeddings: true; source and target need one vocabulary: leave data.target_tokenizer out' "${train[@]}" --set model.share_embeddings=true
expect 2 'it must be divisible by num_heads, 5' "${train[@]}" --set model.num_heads=5
expect 2 "data.max_target_len: 31; with <s> it exceeds the model's max_positions" "${train[@]}" --set model.max_positions=31
expect 2 "data.max_source_len: 33; it exceeds the model's max_positions" "${train[@]}" --set data.max_source_len=33
got=$("$kumi" data verify "$dir/pairs.json" --set data.train="$dir/empty.en" --set data.max_source_len=10 2>&1) || say "verify: $got"
[[ $got == *"skipped: 1 empty, "[1-9]*" over-long"* ]] || say "left out: $got"
exit $failed
