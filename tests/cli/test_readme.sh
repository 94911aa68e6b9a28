#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of README and of the guide's first training and scaling up, one after the other as they stand there, on smaller models and fewer
# steps: each does something, the digests of README's first four runs are equal, and the digest of the run that 4 ranks began and 2 went
# on with is that of 2 ranks alone.
set -u
kumi=$1/kumi build=$1 source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export KUMI_CACHE=$dir/cache
cd "$dir" || exit 1
ln -s "$build" build
ln -s "$source/configs" "$source/data" .
say() { echo "$*"; failed=1; }

# What makes a command short. "x": it needs what is not here.
tiny='--set model.n_layer=1 --set model.n_embd=16 --set train.eval_tokens=512 --set train.log_every=1'
smaller() {
    case $1 in
    *' train configs/shakespeare-char.json '* | *' graph '*) echo "$tiny --set train.steps=6 --set checkpoint.every=3" ;;
    *' train configs/gpt2-124m.json '*) echo "$tiny --set model.n_head=4 --set model.vocab_size=256 --set data.seq_len=16" ;;
    *' bench scaling '*) echo "$tiny --steps 8" ;;
    *' train configs/resnet20-cifar10.json '*) [ -e data/cifar-10-batches-bin ] && echo '--set train.epochs=null --set train.steps=2 --set train.eval_every=0 --set train.eval_tokens=64 --set checkpoint.every=0' || echo x ;;
    *' runs/c '*) [ -e runs/c ] || echo x ;;
    *build/examples/*) [ -x "$1" ] || [ -x build/examples/allreduce ] || echo x ;;
    esac
}
n=0
while IFS= read -r line; do
    command=${line%%#*} more=$(smaller "$line ")
    command=${command/--until 500/--until 3}
    command=${command/ -H h0:2,h1:2 / -H h0:2,h1:2 --rsh none }
    case $more in
    x*) continue ;;
    esac
    eval "timeout 120 $command $more" >out 2>err </dev/null || say "$line: $(tail -3 err)"
    n=$((n + 1))
    case $command in
    *'ckpt export'*) [ -s gpt/model.safetensors ] || say "$line: no weights" ;;
    *) [ -s out ] || [ -s err ] || say "$line: says nothing" ;;
    esac
    case $command in
    *--resume*) grep -q '^step 6/6 ' err || say "$line: does not go on: $(cat err)" ;;
    *'ckpt digest'*) cp out digest ;;
    *--picture*) [ -s "$(echo "$command" | sed 's/.*--picture \([^ ]*\).*/\1/')" ] || grep -q cairo err || say "$line: no picture" ;;
    esac
done < <(sed -n 's/^    \(build\/kumi .*\)/\1/p' "$source/README.md" "$source/docs/guide/first-training.md" "$source/docs/guide/scaling-up.md")
[ "$n" -ge 25 ] || say "only $n commands ran"
for run in one four hosts run; do build/kumi ckpt digest runs/$run >"digest-$run"; done
cmp digest-one digest-four && cmp digest-one digest-hosts && cmp digest-one digest-run || say "README's digests differ"
# shellcheck disable=SC2086
"$kumi" train configs/shakespeare-char.json -n 2 --out runs/two $tiny --set train.steps=6 --set train.virtual_shards=4 >out 2>err || say "2 ranks: $(cat err)"
"$kumi" ckpt digest runs/two | cmp - digest || say 'the digests differ'
exit $failed
