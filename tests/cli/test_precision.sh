#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# f16 and its loss scaler from the command: equal bits over ranks and stages while gradients overflow, a resume in the middle of a hysteresis,
# what metrics, summary and checkpoints say of the scale, the end at the least scale; every family of models in f16.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
cat >"$dir/gpt.json" <<'JSON'
{"model": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 256},
 "data": {"train": "data/tinyshakespeare.txt"},
 "train": {"steps": 12, "virtual_shards": 4, "global_batch": 8, "micro_batch": 1, "eval_tokens": 64, "log_every": 1},
 "optimizer": {"lr": 3e-3}, "checkpoint": {"every": 0},
 "precision": {"compute": "f16", "initial_scale_power": 20, "window": 3, "hysteresis": 2}}
JSON
run() { # name options..
    local out=$dir/$1
    shift
    "$kumi" train "$dir/gpt.json" --out "$out" "$@" >"$dir/log" 2>&1 || say "$*: $(tail -2 "$dir/log")"
}
digest() { "$kumi" ckpt digest "$dir/$1"; }
scales() { python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
print([(r["step"], r["loss"], r["grad_norm"], r["loss_scale"], r["skipped_steps"]) for r in rows if "loss" in r])' "$dir/$1"; }

run one
grep -q 'overflow: step 1: update skipped; loss scale 1048576, now 1048576' "$dir/log" || say "no word of the overflow: $(cat "$dir/log")"
run two -n 2
run four -n 4 --set parallel.share_host_state=false --set parallel.zero=0
for zero in 1 2 3; do run zero$zero -n $((zero == 2 ? 4 : 2)) --set parallel.share_host_state=false --set parallel.zero=$zero; done
for name in two four zero1 zero2 zero3; do
    [ "$(digest one)" = "$(digest $name)" ] || say "$name: other bits than one rank"
    [ "$(scales one)" = "$(scales $name)" ] || say "$name: $(scales $name), one rank: $(scales one)"
done
python3 - "$dir/one" <<'PYTHON' || say "metrics or summary: $(scales one)"
import json, sys
dir = sys.argv[1]
rows = [r for r in map(json.loads, open(dir + "/metrics.jsonl")) if "loss" in r]
summary = json.load(open(dir + "/summary.json"))
scale, left, last, skipped = 2.0 ** 20, 2, -1, 0
for i, r in enumerate(rows): # DeepSpeed's machine, on what the run says overflowed
    if r["grad_norm"] is None:
        skipped += 1
        if left > 1: left -= 1
        else: scale /= 2
        last = i
    elif i - last - 1 > 0 and (i - last - 1) % 3 == 0:
        scale, left = scale * 2, 2
    assert (r["loss_scale"], r["skipped_steps"]) == (scale, skipped), (i, r, scale, skipped)
assert skipped >= 2 and rows[0]["grad_norm"] is None
assert summary["loss_scale"] == scale and summary["skipped_steps"] == skipped and summary["update"] == summary["step"] - skipped == 12 - skipped
assert rows[-1]["loss"] < rows[0]["loss"]
PYTHON

# stopped behind the first overflow, of which the second will count, and resumed under another layout
run part --until 1
run part --resume -n 4 --set parallel.share_host_state=false --set parallel.zero=3
[ "$(digest one)" = "$(digest part)" ] || say 'resumed in a hysteresis: other bits'
[ "$(scales one)" = "$(scales part)" ] || say "resumed in a hysteresis: $(scales part), $(scales one)"
python3 - "$dir/part/checkpoints" <<'PYTHON' || say 'the manifest does not hold the scaler'
import json, sys
state = json.load(open(sys.argv[1] + "/step-00000001/manifest.json"))["state"]
assert state == {"loss_scale": 2.0 ** 20, "scaler_steps": 1, "last_overflow": 0, "hysteresis_left": 1, "good_steps": 0,
    "skipped_steps": 1, "is_spent": 0}, state
PYTHON
got=$("$kumi" train "$dir/gpt.json" --out "$dir/part" --resume --set train.steps=13 --set precision.hysteresis=3 2>&1)
[ $? = 2 ] && [[ $got == *'precision.hysteresis (was 2, is 3)'* ]] || say "another rule: $got"
run async --until 6 --set checkpoint.async=true --set checkpoint.every=3
run async --resume --set checkpoint.async=true
[ "$(digest one)" = "$(digest async)" ] || say 'checkpoints written meanwhile: other bits'

# PyTorch's policy, a fixed scale, none
run torch --set precision.scaler=torch
run torch2 --set precision.scaler=torch -n 2
[ "$(digest torch)" = "$(digest torch2)" ] && [ "$(digest torch)" != "$(digest one)" ] || say "GradScaler's policy"
run fixed --set precision.loss_scale=1024 --set train.clip_value=1e-3
[ "$("$kumi" ckpt digest "$dir/fixed")" = "$(run fixed2 -n 2 --set precision.loss_scale=1024 --set train.clip_value=1e-3; digest fixed2)" ] || say 'a fixed scale'
run bf16 --set precision.compute=bf16
grep -q loss_scale "$dir/bf16/metrics.jsonl" && say 'bf16 has a loss scale that nobody asked for'
run bf16s --set precision.compute=bf16 --set precision.loss_scale=dynamic --set precision.initial_scale_power=3
grep -q '"loss_scale":8,' "$dir/bf16s/metrics.jsonl" || say 'bf16 has no loss scale, which was asked for'

# the end: DeepSpeed's sentence, exit 9, on all ranks once
got=$("$kumi" train "$dir/gpt.json" -n 2 --out "$dir/spent" --set precision.hysteresis=1 \
    --set precision.initial_scale_power=40 --set precision.min_scale=549755813888 2>&1)
[ $? = 9 ] && [ "$(grep -c 'Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.' <<<"$got")" = 1 ] || say "the least scale: $got"
for bad in 'loss_scale=0' 'loss_scale=static' 'window=0' 'min_scale=0' 'hysteresis=0' 'scaler=apex' 'initial_scale_power=200' 'compute=fp16'; do
    got=$("$kumi" train "$dir/gpt.json" --out "$dir/bad" --set "precision.$bad" 2>&1)
    [ $? = 2 ] && [[ $got == *"precision.${bad%%=*}"* ]] || say "$bad: $got"
done

# DeepSpeed's block is the same run
python3 - "$dir" <<'PYTHON'
import json, sys
dir = sys.argv[1]
config = json.load(open(dir + "/gpt.json"))
del config["precision"], config["train"]["micro_batch"], config["train"]["global_batch"], config["optimizer"]
config["train"].update(clip_norm=1.0)
config["deepspeed"] = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 20, "loss_scale_window": 3, "hysteresis": 2, "min_loss_scale": 1, "auto_cast": False}}
json.dump(config, open(dir + "/ds.json", "w"))
PYTHON
"$kumi" train "$dir/ds.json" -n 2 --out "$dir/ds" >"$dir/log" 2>&1 || say "deepspeed: $(tail -2 "$dir/log")"
"$kumi" train "$dir/gpt.json" --out "$dir/own" --set optimizer.decay=all >/dev/null 2>&1 || say "in kumi's words"
[ "$(digest ds)" = "$(digest own)" ] || say "DeepSpeed's fp16 block: other bits than in kumi's words"
got=$("$kumi" train "$dir/ds.json" -n 2 --explain-deepspeed)
for key in enabled loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale; do
    grep -q "^fp16.$key .* applied\$" <<<"$got" || say "fp16.$key is not applied: $(grep "^fp16.$key" <<<"$got")"
done

# every family, 1 and 2 ranks, and text made in f16
small=(--set train.eval_tokens=256 --set train.virtual_shards=2 --set precision.compute=f16 --until 3)
for model in llama-tiny bert-tiny; do
    for n in 1 2; do
        "$kumi" train "configs/$model.json" "${small[@]}" --set train.global_batch=4 --set data.seq_len=24 -n $n --out "$dir/$model-$n" >"$dir/log" 2>&1 || say "$model: $(tail -1 "$dir/log")"
    done
    [ "$(digest $model-1)" = "$(digest $model-2)" ] || say "$model: 1 and 2 ranks differ"
done
"$kumi" sample "$dir/llama-tiny-1" --tokens 4 --prompt To >/dev/null 2>&1 || say 'no text of an f16 model'
"$kumi" sample "$dir/one" --tokens 4 --prompt To --dtype f32 >/dev/null 2>&1 || say 'no text in f32'
exit $failed
