# SPDX-License-Identifier: Apache-2.0
# examples/gpt.c with DIR: starts without a checkpoint, continues from one, and ends where all are damaged.
build=$1 source=$2
gpt=$build/examples/gpt
[ -x "$gpt" ] || { echo "$gpt is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
run() { timeout 60 "$gpt" "$source/data/tinyshakespeare.txt" 20 1 "$work/run" >"$work/out" 2>"$work/err"; }
say() { echo "$*"; cat "$work/out" "$work/err"; failed=1; }
unset RANK
run || say "the first run failed"
run || say "the second run failed"
grep -q '^step  20 ' "$work/out" || say "the second run does not begin with step 20"
for manifest in "$work"/run/step-*/manifest.json; do : >"$manifest"; done
run && say "a run from damaged checkpoints"
grep -q '^gpt: checkpoint: .*: none of 2 snapshots is usable' "$work/err" && ! grep -q '^step' "$work/out" || say "it trained, or does not say why not"
exit $failed
