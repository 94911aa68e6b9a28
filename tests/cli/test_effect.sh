#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a configuration says without effect is said on standard error, once for all ranks: keys, learning rates of 0, the end of a schedule.
. "$2/tests/cli/begin.sh"
cat >"$dir/c.json" <<END
{"model": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 256},
 "data": {"train": "$source/data/tinyshakespeare.txt"},
 "train": {"steps": 6, "global_batch": 4, "virtual_shards": 2, "eval_every": 0, "eval_tokens": 64, "log_every": 1, "threads": 1},
 "schedule": {"type": "cosine"}}
END
train() { # out options..: standard error in $dir/err
    local out=$1
    shift
    timeout 60 "$kumi" train "$dir/c.json" --out "$dir/$out" "$@" >"$dir/out" 2>"$dir/err" || say "train $*: $(tail -1 "$dir/err")"
}
has() { # count text
    [ "$(grep -cF -- "$2" "$dir/err")" = "$1" ] || say "wanted $1 lines: $2; got: $(cat "$dir/err")"
}
train plain
has 0 'no effect'
has 0 'schedule'
train keys -n 2 --set optimizer.momentum=0.9 --set data.crop=random --set data.format=u16
has 1 'kumi: config: these keys have no effect: data.format (data files: none ends in .bin; it is for .bin), data.crop (data.kind: text; it is for cifar10'
has 1 'optimizer.momentum (optimizer.type: adamw; it is for sgd lars rmsprop)'
train zero --set optimizer.lr=0
has 1 'kumi: schedule: the learning rate is 0 in all 6 steps, so nothing is trained'
train warm --set schedule.warmup_steps=50
has 1 'kumi: schedule.warmup_steps: the warm-up takes 50 steps, the run 6: the learning rate ends at'
train decay --set schedule.type=wsd --set schedule.warmup_steps=2 --set optimizer.lr=1e-3 --set schedule.min_lr=0 --set schedule.step_size=8
has 1 'kumi: schedule.step_size: the final decay takes 8 steps, but 4 follow the warm-up: it starts at learning rate 0.0005, not at 0.001; give 4 or fewer'
train fits --set schedule.type=wsd --set schedule.warmup_steps=2 --set schedule.step_size=4
has 0 'schedule'

# a resumed run keeps the end that followed from its first length, and its bits
train plain --resume --set train.steps=9
has 1 'kumi: schedule.decay_steps: the schedule still ends at step 6, as in the checkpoint; the run now ends at step 9, with learning rate 0; schedule.decay_steps=9 with --allow-change moves the end'
train given --set train.steps=9 --set schedule.decay_steps=6
has 0 'schedule.decay_steps'
digest() { grep -o '"digest": "[^"]*"' "$dir/$1/summary.json"; }
[ "$(digest plain)" = "$(digest given)" ] || say "a derived end and the same end given: $(digest plain), $(digest given)"

# --set of one of two keys for one thing
sed -i 's/"steps": 6/"epochs": 1/' "$dir/c.json"
train steps --set train.steps=2
grep -q '"step": 2,' "$dir/steps/summary.json" || say "train.steps=2 over train.epochs: $(cat "$dir/steps/summary.json")"
exit $failed
