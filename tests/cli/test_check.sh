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
    set -- -n 2 --set train.steps=1 --set parallel.zero=$zero --set parallel.share_host_state=$([ $zero = 0 ] && echo true || echo false)
    "$kumi" graph $config "$@" >"$dir/train.txt" || failed=1
    for program in train eval init derive; do
        expect 0 "$program " check $config "$@"
        "$kumi" graph $config "$@" --program $program >"$dir/$program.txt" || failed=1
        expect 0 "$program " check $config "$@" --program "$dir/$program.txt"
    done
    expect 0 'accepted: 2 ranks' check $config "$@" --program "$dir/train.txt"
    expect 0 'derive ' check $config "$@" --program "$dir"/{derive,eval,init,train}.txt
    expect 0 'accepted: 2 ranks' check $config "$@" --program "$dir/train.txt" "$dir/train.txt"

    # a wrong program: kumi check and kumi train say the same
    mkdir -p "$dir/wrong"
    sed '/adamw/s/eps=[^ ]*/eps=0.5/' "$dir/train.txt" >"$dir/wrong/train.txt"
    cmp -s "$dir/train.txt" "$dir/wrong/train.txt" && { echo "the text has no eps"; failed=1; }
    says='computes a value that the update does not have'
    expect 12 "$says" check $config "$@" --program "$dir/wrong/train.txt"
    KUMI_PROGRAM_TEXT=$dir/wrong expect 12 "$says" train $config "$@" --out "$dir/run"
    [ -e "$dir/run/metrics.jsonl" ] && [ -s "$dir/run/metrics.jsonl" ] && { echo "a refused run made steps"; failed=1; }
    rm -rf "$dir/run"
done

sed 's/ all_reduce #\([0-9]*\) shard/ all_reduce #\1 shard group=2/' "$dir/train.txt" >"$dir/other.txt"
expect 12 'ranks of one class have different programs' check $config "$@" --program "$dir/train.txt" "$dir/other.txt"
expect 12 'the mesh is not that of the configuration' check $config -n 1 --program "$dir/train.txt"

# a pipeline: a text per program and coordinate
pipe=(-n 4 --set train.steps=1 --set parallel.pp=2 --set parallel.tp=2)
mkdir "$dir/pp" "$dir/edit"
for program in train eval init derive; do
    for k in 0 1; do "$kumi" graph $config "${pipe[@]}" --program $program --coordinate $k >"$dir/pp/$program.pp$k.txt" || failed=1; done
    expect 0 "$program " check $config "${pipe[@]}" --program "$dir/pp/$program".pp{1,0}.txt
done
cmp <("$kumi" graph $config "${pipe[@]}") "$dir/pp/train.pp0.txt" || failed=1
expect 0 'accepted: 4 ranks in 2 classes' check $config "${pipe[@]}" --program "$dir"/pp/*.txt
KUMI_PROGRAM_TEXT=$dir/pp expect 0 '' train $config "${pipe[@]}" --out "$dir/run"
rm -rf "$dir/run"
expect 2 'program train of coordinate 0 of axis pp is missing' check $config "${pipe[@]}" --program "$dir/pp/train.pp1.txt"
expect 2 'program eval of coordinate 1 of axis pp is missing' check $config "${pipe[@]}" --program "$dir"/pp/{train.pp0,train.pp1,eval.pp0}.txt
expect 12 'the mesh is not that of the configuration' check $config "${pipe[@]}" --program "$dir/train.txt"
sed '2s/at_pp=1/at_pp=2/' "$dir/pp/train.pp1.txt" >"$dir/beyond.txt"
expect 12 'beyond.txt: at_pp=2; axis pp has 2 ranks' check $config "${pipe[@]}" --program "$dir/pp/train.pp0.txt" "$dir/beyond.txt"
# one edit at coordinate 1: of the optimizer, of a message's sender and of its channel
while IFS='|' read -r edit says; do
    sed "$edit" "$dir/pp/train.pp1.txt" >"$dir/edit/train.pp1.txt"
    cmp -s "$dir"/{pp,edit}/train.pp1.txt && { echo "nothing to edit: $edit"; failed=1; }
    expect 12 "$says" check $config "${pipe[@]}" --program "$dir"/{pp/train.pp0,edit/train.pp1}.txt
    KUMI_PROGRAM_TEXT=$dir/edit expect 12 "$says" train $config "${pipe[@]}" --out "$dir/run"
    rm -rf "$dir/run"
done <<'ROWS'
/adamw/s/eps=[^ ]*/eps=0.5/|check: program train, ranks of pp 1, instruction
s/ recv #2 pp peer=0/ recv #2 pp peer=1/|check: program train, ranks of pp 1, instruction 2, recv h.1
s/ recv #1 pp peer=0 group=3/ recv #1 pp peer=0 group=1/|waits for ever, as do pp 1 at
ROWS
expect 12 'another file has coordinate 1 of axis pp too' check $config "${pipe[@]}" --program "$dir"/{pp/train.pp0,pp/train.pp1,edit/train.pp1}.txt
# the coordinates have one state plan, whatever the programs
for program in train eval; do
    sed '/^state .* pp=0$/s/ shard+0 / shard+64 /' "$dir/pp/$program.pp1.txt" >"$dir/moved.txt"
    expect 12 "check: program $program of coordinate 1 of axis pp places wpe.weight otherwise" check $config "${pipe[@]}" --program "$dir/pp/$program.pp0.txt" "$dir/moved.txt"
done

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
