#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs by optimizer and schedule: equal digests on 1 and 2 ranks and over a resume, the scaled learning rate said once,
# smoothed labels in training alone.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
cat >"$dir/c.json" <<END
{"model": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 48, "n_positions": 16, "vocab_size": 256},
 "data": {"train": "$source/data/tinyshakespeare.txt"},
 "train": {"steps": 12, "global_batch": 16, "micro_batch": 2, "virtual_shards": 4, "eval_every": 0, "eval_tokens": 512, "threads": 1}}
END
train() { # OUT ARGS..
    local out=$1
    shift
    "$kumi" train "$dir/c.json" --out "$dir/$out" "$@" >"$dir/$out.out" 2>"$dir/$out.err" || say "$out: $(tail -1 "$dir/$out.err")"
}
digest() { sed -n 's/^digest: //p' "$dir/$1.out"; }

lars=(--set optimizer.type=lars --set optimizer.lr=2 --set optimizer.momentum=0.9 --set schedule.type=polynomial --set schedule.power=2
    --set schedule.warmup_steps=3 --set 'optimizer.lr_scaling={"rule":"linear","base_batch":64}' --set train.label_smoothing=0.1)
lamb=(--set optimizer.type=lamb --set optimizer.lr=0.01 --set optimizer.lr_scaling.rule=sqrt --set optimizer.lr_scaling.base_batch=4
    --set optimizer.adapt='["*.weight"]' --set schedule.type=one_cycle --set optimizer.weight_decay=0.01)
sgd=(--set optimizer.type=sgd --set optimizer.lr=0.1 --set optimizer.momentum=0.9 --set optimizer.nesterov=true
    --set schedule.type=multi_step --set schedule.milestones=[4,8])
groups='[{"match":"*.bias","weight_decay":0,"lr_mult":2},{"match":["wte.*","wpe.*"],"betas":[0.8,0.9]}]'
lion=(--set optimizer.type=lion --set optimizer.lr=0.001 --set optimizer.weight_decay=0.1 --set "optimizer.groups=$groups"
    --set schedule.type=warmup_cosine_lr --set schedule.warmup_num_steps=4 --set train.ema=0.8 --set train.ema_warmup=true)
rmsprop=(--set optimizer.type=rmsprop --set optimizer.lr=0.001 --set optimizer.momentum=0.5 --set optimizer.centered=true --set checkpoint.async=true
    --set schedule.type=warmup_lr --set schedule.warmup_num_steps=4 --set schedule.warmup_type=linear --set train.ema=0.9)
adagrad=(--set optimizer.type=adagrad --set optimizer.lr=0.05 --set optimizer.initial_accumulator_value=0.1 --set schedule.type=ds_one_cycle
    --set schedule.cycle_min_lr=0.01 --set schedule.cycle_max_lr=0.05 --set schedule.cycle_first_step_size=5)
adafactor=(--set optimizer.type=adafactor --set optimizer.lr=0.01 --set optimizer.weight_decay=0.1 --set train.ema=0.5)
for name in lars lamb sgd lion rmsprop adagrad adafactor; do
    declare -n set=$name
    train "$name-1" "${set[@]}"
    train "$name-2" "${set[@]}" -n 2
    train "$name-3" "${set[@]}" -n 2 --until 5
    train "$name-3" "${set[@]}" --resume
    for n in 2 3; do
        [ -n "$(digest "$name-1")" ] && [ "$(digest "$name-1")" = "$(digest "$name-$n")" ] || say "$name: digests differ: 1, $n"
    done
done
[ "$(digest lars-1)" != "$(digest lamb-1)" ] || say "two optimizers, one digest"
grep -qx 'kumi: learning rate 0.5 = 2 x (16 / 64)' "$dir/lars-2.err" && [ "$(grep -c 'learning rate' "$dir/lars-2.err")" = 1 ] ||
    say "lars: $(grep 'learning rate' "$dir/lars-2.err")"
grep -qx 'kumi: learning rate 0.02 = 0.01 x sqrt(16 / 4)' "$dir/lamb-1.err" || say "lamb: $(grep 'learning rate' "$dir/lamb-1.err")"
grep -q 'learning rate' "$dir/sgd-1.err" && say "sgd: its learning rate is not scaled"
python3 - "$dir" <<'END' || failed=1
import json, subprocess, sys
dir = sys.argv[1]
rows = lambda run: [json.loads(line) for line in open(f"{dir}/{run}/metrics.jsonl")]
lr = lambda run: {r["step"]: r["lr"] for r in rows(run) if "lr" in r}
assert abs(lr("lars-1")[1] - 0.5 / 4) < 1e-9 and abs(lr("lars-1")[10] - 0.5 * (1 - 6 / 9) ** 2) < 1e-9, lr("lars-1")
assert abs(lr("lamb-1")[1] - 0.02 / 25) < 1e-9, lr("lamb-1") # one_cycle's first
assert abs(lr("sgd-1")[10] - 0.001) < 1e-9, lr("sgd-1")
END
val() { "$kumi" eval "$dir/$1" "${@:2}" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["val_loss"])'; }
# the loss of an evaluation knows no smoothing: a run told to smooth nothing has the same
train plain "${lars[@]}" --set train.label_smoothing=0 --until 1
train smooth "${lars[@]}" --until 1
python3 - "$dir" <<'END' || failed=1
import json, sys
first = [json.loads(open(f"{sys.argv[1]}/{run}/metrics.jsonl").readline())["loss"] for run in ("plain", "smooth")]
assert abs(first[0] - first[1]) > 1e-6 and abs(first[0] / first[1] - 1) < 0.01, first # near ln 256 both, at first
END
[ "$(val lars-1)" = "$(val lars-2)" ] || say "eval: $(val lars-1), $(val lars-2)"
# averages: on any rank count and over a resume, other than the weights, and the same as exported ones
average=$(val lion-1 --ema)
for args in "lion-2 --ema" "lion-3 --ema" "lion-1 --ema -n 2"; do
    # shellcheck disable=SC2086
    [ "$(val $args)" = "$average" ] || say "eval $args: $(val $args), $average"
done
[ "$average" != "$(val lion-1)" ] || say "averages evaluate as the weights do"
"$kumi" ckpt export "$dir/lion-1" --ema --to "$dir/averages" 2>"$dir/err" || say "export --ema: $(cat "$dir/err")"
train again "${lion[@]}" --set "model={\"path\":\"$dir/averages\"}" --set optimizer.lr=0 --set schedule.type=constant --until 1
[ "$(val again)" = "$average" ] || say "exported averages: $(val again), $average"
say_it() { "$kumi" sample "$@" --prompt "The " --tokens 40 --seed 3 --dtype f32 2>/dev/null; }
[ -n "$(say_it "$dir/averages")" ] && [ "$(say_it "$dir/lion-1" --ema)" = "$(say_it "$dir/averages")" ] || say "sample --ema: not as exported averages"
[ "$(say_it "$dir/lion-1")" != "$(say_it "$dir/lion-1" --ema)" ] || say "sample --ema: as the weights"
refuse() { # CODE TEXT ARGS..: one line
    local want=$1 text=$2
    shift 2
    "$kumi" "$@" >"$dir/out" 2>"$dir/err"
    local code=$?
    [ $code = "$want" ] && grep -qF -- "$text" "$dir/err" || say "kumi $*: $code, $(cat "$dir/err")"
}
refuse 2 'this run keeps no averages of its weights' eval "$dir/sgd-1" --ema
refuse 2 'this run keeps no averages of its weights' sample "$dir/sgd-1" --ema
refuse 2 "ema: $dir/averages: a directory of weights has no averages; give a run, or leave out --ema" sample "$dir/averages" --ema
refuse 2 'holds no averages of the weights' ckpt export "$dir/sgd-1" --ema --to "$dir/none"
[ ! -e "$dir/none" ] || say "export --ema left a directory"
refuse 2 'optimizer.groups: group 0: match: *.bais: no parameter name matches' train "$dir/c.json" --out "$dir/no" \
    --set 'optimizer.groups=[{"match":"*.bais","lr_mult":2}]'
exit $failed
