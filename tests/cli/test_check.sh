#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi check: programs of a configuration and of files; what is wrong is one line, with exit code 12 of kumi check and of kumi train.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
config=configs/shakespeare-fast.json
expect() { # code text command..
    local code=$1 text=$2 got is
    shift 2
    got=$(timeout 120 "$kumi" "$@" 2>&1)
    is=$?
    if [ $is -ne "$code" ] || ! grep -qF -- "$text" <<<"$got" || { [ "$code" != 0 ] && [ "$(grep -c '^kumi: error:' <<<"$got")" != 1 ]; }; then
        printf 'kumi %s\n  wanted %s: %s\n  got    %s: %s\n' "$*" "$code" "$text" $is "$got"
        failed=1
    fi
}
for zero in 0 3; do
    set -- -n 2 --set parallel.zero=$zero --set parallel.share_host_state=$([ $zero = 0 ] && echo true || echo false)
    "$kumi" graph $config "$@" >"$dir/train.txt" || failed=1
    for program in train eval init derive; do expect 0 "$program " check $config "$@"; done
    expect 0 'accepted: 2 ranks' check $config "$@" --program "$dir/train.txt"
    expect 0 'accepted: 2 ranks' check $config "$@" --program "$dir/train.txt" "$dir/train.txt"

    # a wrong program: kumi check and kumi train say the same
    mkdir -p "$dir/wrong"
    sed '/adamw/s/eps=[^ ]*/eps=0.5/' "$dir/train.txt" >"$dir/wrong/train.txt"
    cmp -s "$dir/train.txt" "$dir/wrong/train.txt" && { echo "the text has no eps"; failed=1; }
    says='computes a value that the update does not have'
    expect 12 "$says" check $config "$@" --program "$dir/wrong/train.txt"
    KUMI_PROGRAM_TEXT=$dir/wrong expect 12 "$says" train $config "$@" --set train.steps=1 --out "$dir/run"
    [ -e "$dir/run/metrics.jsonl" ] && [ -s "$dir/run/metrics.jsonl" ] && { echo "a refused run made steps"; failed=1; }
    rm -rf "$dir/run"
done

sed 's/ all_reduce #\([0-9]*\) shard/ all_reduce #\1 shard group=2/' "$dir/train.txt" >"$dir/other.txt"
expect 12 'ranks of one class have different programs' check $config "$@" --program "$dir/train.txt" "$dir/other.txt"
expect 12 'the mesh is not that of the configuration' check $config -n 1 --program "$dir/train.txt"

# files that are no programs
sed '3s/^arenas/arenae/' "$dir/train.txt" >"$dir/line.txt"
sed '1s/train/walk/' "$dir/train.txt" >"$dir/name.txt"
: >"$dir/empty.txt"
expect 3 "program text: $dir/line.txt:3:1: no such kind of line, at 'arenae" check $config "$@" --program "$dir/line.txt"
expect 3 "program text: $dir/empty.txt:0:1: the text is empty" check $config "$@" --program "$dir/empty.txt"
expect 3 "$dir/name.txt: program walk; the name must be train, eval, init or derive" check $config "$@" --program "$dir/name.txt"
expect 3 "program text: $dir/none.txt: No such file or directory" check $config "$@" --program "$dir/none.txt"
expect 2 'kumi check: --program: give files after CONFIG' check $config --program
expect 2 'texts of programs need --program' check $config "$dir/train.txt"

# a parallel corpus: the programs of every batch shape, of training and of validation
for i in {1..60}; do printf 'e%.0s ' $(seq $((i % 6 + 1))); echo; done >"$dir/en"
for i in {1..60}; do printf 'j%.0s ' $(seq $((i % 9 + 1))); echo; done >"$dir/ja"
cat >"$dir/pairs.json" <<J
{ "model": {"model_type": "transformer", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "ffn_dim": 16, "max_positions": 16},
  "data": {"train": "$dir/en", "train_target": "$dir/ja", "val": "$dir/en", "val_target": "$dir/ja", "tokenizer": "word",
           "target_tokenizer": "word", "batch_tokens": 60, "shapes": 3, "last_batch": "short", "max_source_len": 12, "max_target_len": 12},
  "train": {"steps": 1, "threads": 1} }
J
expect 0 'accepted: 1 rank' check "$dir/pairs.json"
"$kumi" check "$dir/pairs.json" >"$dir/table"
for split in training validation; do [ "$(grep -c "^$split batches of " "$dir/table")" -ge 2 ] || { cat "$dir/table"; failed=1; }; done
for program in train eval; do
    [ "$(grep -c "^$program " "$dir/table")" = "$(grep -c ' batches of ' "$dir/table")" ] || { echo "$program: $(cat "$dir/table")"; failed=1; }
done
[ "$(grep -c '^init ' "$dir/table")" = 1 ] || { cat "$dir/table"; failed=1; }
exit $failed
