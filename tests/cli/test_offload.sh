#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# memory.offload on the command line: equal digests, what the plan says, and what goes wrong with folders and disks.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d -p "$1")
mounted=
trap '[ -z "$mounted" ] || umount "$mounted"; rm -rf "$dir"' EXIT
cd "$source" || exit 1
say() { echo "$*"; failed=1; }
words=abcdefghijklmnopqrstuvwxyz
for _ in $(seq 400); do printf '%s the quick brown fox jumps over the lazy dog.\n' $words; done >"$dir/text.txt"
printf '{"model":{"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":64,"n_positions":32,"vocab_size":256},
 "data":{"train":"%s","seq_len":32},"train":{"steps":4,"global_batch":4,"eval_every":0,"eval_tokens":256,"log_every":1},
 "checkpoint":{"every":2,"keep":0}}' "$dir/text.txt" >"$dir/c.json"
train() { "$kumi" train "$dir/c.json" --out "$dir/$1" --overwrite "${@:2}" 2>"$dir/err" | grep digest; }
offload() { printf 'memory.offload={"optimizer":"%s","params":"%s","activations":"%s","path":"%s","buffer_size":8192}' "$1" "$2" "$3" "${4-$dir}"; }

plain=$(train plain -n 2)
[ -n "$plain" ] || say "the plain run: $(cat "$dir/err")"
for set in "host none none" "file none file"; do
    # shellcheck disable=SC2086
    got=$(train "shared" -n 2 --set "$(offload $set)")
    [ "$got" = "$plain" ] || say "offload $set: $got, not $plain: $(cat "$dir/err")"
done
for zero in 0 1 2; do
    got=$(train zero -n 2 --set parallel.share_host_state=false --set parallel.zero=$zero --set "$(offload file none host)")
    [ "$got" = "$plain" ] || say "offload with zero $zero: $got, not $plain: $(cat "$dir/err")"
done
three=(--set parallel.share_host_state=false --set parallel.zero=3 --set parallel.persist_below=0)
got=$(train zero3 -n 2 "${three[@]}" --set memory.recompute=full --set "$(offload file file file)")
[ "$got" = "$plain" ] || say "all of it with zero 3: $got, not $plain: $(cat "$dir/err")"
[ -z "$(find "$dir" -maxdepth 1 -name '.kumi*')" ] || say "a file is left"

# a checkpoint of one, resumed by another
rm -rf "$dir"/zero3/checkpoints/step-00000004
got=$("$kumi" train "$dir/c.json" --out "$dir/zero3" --resume -n 1 2>"$dir/err" | grep digest)
[ "$got" = "$plain" ] || say "resumed without offload: $got, not $plain: $(cat "$dir/err")"
rm -rf "$dir"/plain/checkpoints/step-00000004
got=$("$kumi" train "$dir/c.json" --out "$dir/plain" --resume -n 2 --set checkpoint.async=true "${three[@]}" --set "$(offload file file none)" 2>"$dir/err" | grep digest)
[ "$got" = "$plain" ] || say "resumed with offload: $got, not $plain: $(cat "$dir/err")"

# the plan counts what lies where
"$kumi" plan "$dir/c.json" --memory -n 2 --set "$(offload file none none)" >"$dir/plan" 2>&1 || say "plan: $(cat "$dir/plan")"
grep -q '^file    rank, on disk ' "$dir/plan" && grep -q '^and on disk: ' "$dir/plan" && ! grep -q '^  optimizer ' "$dir/plan" || say "plan: $(cat "$dir/plan")"
"$kumi" plan "$dir/c.json" --memory -n 1 --set train.global_batch=4 >"$dir/plan" 2>&1
grep -q -- '--set memory.offload.optimizer=file ' "$dir/plan" || say "plan says nothing of what offload would remove: $(cat "$dir/plan")"

expect() { # code text command..
    local code=$1 text=$2 got is
    shift 2
    got=$("$kumi" train "$dir/c.json" --out "$dir/e" --overwrite "$@" 2>&1 >/dev/null)
    is=$?
    [ $is = "$code" ] && printf '%s' "$got" | grep -qF -- "$text" || say "$*: wanted $code: $text; got $is: $got"
    [ "$(printf '%s\n' "$got" | grep -c '^kumi: error:')" = 1 ] || say "$*: not one error line: $got"
}
# a missing folder is created in an existing one
for n in 1 2; do
    got=$(train new -n $n --set train.virtual_shards=2 --set "$(offload file none file "$dir/new-$n")")
    [ "$got" = "$plain" ] && [ -d "$dir/new-$n" ] || say "a folder to create, $n ranks: $got: $(cat "$dir/err")"
done
[ -z "$(ls -A "$dir/new-1" "$dir/new-2" | grep -v :)" ] || say "a file is left in the folder"
none='the folder that should contain it does not exist; create it, or name another folder in memory.offload.path'
expect 5 "offload: $dir/none/a: $none" --set "$(offload file none none "$dir/none/a")"
expect 5 "offload: $dir/none/a: $none" -n 2 --set "$(offload none none file "$dir/none/a")"
expect 5 "offload: $dir/c.json/a: Not a directory; memory.offload.path must name a folder on a disk" --set "$(offload file none none "$dir/c.json/a")"
expect 5 "offload: $dir/c.json: making a file: Not a directory" --set "$(offload file none none "$dir/c.json")"
expect 5 'offload: /proc: ' --set "$(offload file none none /proc)"
expect 2 'memory.offload.path: missing; give a folder on a local disk' --set 'memory.offload={"optimizer":"file"}'
expect 2 'memory.offload.optimizer: "cpu"; one of: none host file' --set 'memory.offload={"optimizer":"cpu"}'
expect 2 'memory.offload.optimiser: unknown key; did you mean optimizer?' --set 'memory.offload={"optimiser":"host"}'
expect 2 'memory.offload.buffer_count: 0; an integer from 1 to 64' --set 'memory.offload={"buffer_count":0}'
expect 2 'memory.offload.params: "host"; with parallel.zero 1 and 2 every rank reads its own copy; use parallel.zero 3' -n 2 \
    --set parallel.share_host_state=false --set parallel.zero=2 --set 'memory.offload={"params":"host"}'
if [ "$(id -u)" = 0 ] && mkdir "$dir/small" && mount -t tmpfs -o size=64k tmpfs "$dir/small" 2>/dev/null; then
    mounted=$dir/small
    expect 5 "offload: $dir/small: 1 rank need" --set "$(offload file none none "$dir/small")"
fi
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
    got=$(train shm -n 2 --set "$(offload file none none /dev/shm)")
    [ "$got" = "$plain" ] && grep -q 'offload: /dev/shm: is on tmpfs, which is memory' "$dir/err" || say "a folder in memory: $got: $(cat "$dir/err")"
fi
exit $failed
