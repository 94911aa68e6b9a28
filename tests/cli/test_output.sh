#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a command prints and cannot write is an error: exit 5 and one line, for a full disk, a closed descriptor and a reader that went away.
[ -w /dev/full ] || exit 77
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
check() { # what code how
    [ $2 = 5 ] && [ "$(grep -c '^kumi: error: stdout: .*; the output is incomplete$' "$dir/err")" = 1 ] && [ "$(grep -c '^kumi: error' "$dir/err")" = 1 ] || say "kumi $1, $3: exit $2: $(cat "$dir/err")"
}
lost() { # a command; its standard input is $dir/in
    "$kumi" "$@" <"$dir/in" >/dev/full 2>"$dir/err"
    check "$*" $? 'disk full'
    "$kumi" "$@" <"$dir/in" >&- 2>"$dir/err"
    check "$*" $? closed
}
config=configs/shakespeare-fast.json
small=($config --set model.n_layer=1 --set train.global_batch=4 --set train.eval_tokens=512)
python3 - "$dir" <<'P'
import sys
dir = sys.argv[1]
for name, word in ("en", "a b"), ("ja", "c d"):
    open(f"{dir}/t.{name}", "w").write(f"{word}\n" * 20)
P
cat >"$dir/pairs.json" <<J
{ "model": {"model_type": "transformer", "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "ffn_dim": 8, "max_positions": 8, "dropout": 0},
  "data": {"train": "$dir/t.en", "train_target": "$dir/t.ja", "val": "$dir/t.en", "val_target": "$dir/t.ja", "tokenizer": "word", "target_tokenizer": "word",
           "batch_tokens": 40, "shapes": 1, "last_batch": "short", "max_source_len": 6, "max_target_len": 6},
  "train": {"steps": 1, "eval_every": 0, "threads": 1} }
J
"$kumi" train "${small[@]}" --out "$dir/run" --set train.steps=2 >/dev/null 2>"$dir/err" || say "train: $(cat "$dir/err")"
"$kumi" train "$dir/pairs.json" --out "$dir/pairs" >/dev/null 2>"$dir/err" || say "train pairs: $(cat "$dir/err")"
printf '70 105\n' >"$dir/in"
lost --version
lost --help
lost help config
lost train --help
lost info
lost info --json
lost tokenizer encode --tokenizer byte
lost tokenizer decode --tokenizer byte
lost tokenizer train --vocab 260 --out "$dir/tok.json" --json "$dir/t.en"
lost data verify $config
lost graph $config
lost plan $config
lost plan $config --stages
lost bench comm barrier -n 2 --json
lost ckpt list "$dir/run" --json
lost ckpt verify "$dir/run"
lost ckpt digest "$dir/run"
lost eval "$dir/run"
lost eval "$dir/run" --json
lost sample "$dir/run" --tokens 3
printf 'a b\n' >"$dir/in"
lost translate "$dir/pairs"
for n in 1 2; do
    "$kumi" train "${small[@]}" -n $n --out "$dir/lost$n" --set train.steps=2 >/dev/full 2>"$dir/err"
    check "train -n $n" $? 'disk full'
    [ -s "$dir/lost$n/summary.json" ] && "$kumi" ckpt verify "$dir/lost$n" >/dev/null || say "train -n $n: the run is not whole"
done
# descriptors that were closed are not given to files
"$kumi" train "${small[@]}" --out "$dir/closed" --set train.steps=2 <&- >&- 2>&-
[ $? = 5 ] && [ "$("$kumi" ckpt digest "$dir/closed")" = "$("$kumi" ckpt digest "$dir/run")" ] || say 'train without descriptors: another digest'
# output longer than a pipe's buffer: a reader that is gone ends the command in silence, or is an error where SIGPIPE is ignored; a run goes on
long() { "$kumi" tokenizer encode --tokenizer byte <data/tinyshakespeare.txt; }
long 2>"$dir/err" | true
[ "${PIPESTATUS[0]}" = 141 ] && [ ! -s "$dir/err" ] || say "SIGPIPE: $(cat "$dir/err")"
(trap '' PIPE; long 2>"$dir/err"; echo $? >"$dir/code") | true
check 'tokenizer encode' "$(cat "$dir/code")" 'the reader is gone'
{ "$kumi" train "${small[@]}" --out "$dir/unread" --set train.steps=3 2>&1; echo $? >"$dir/code"; } | true
[ "$(cat "$dir/code")" = 5 ] && [ -d "$dir/unread/checkpoints/step-00000003" ] || say "train, nothing is read: $(cat "$dir/code")"
exit $failed
