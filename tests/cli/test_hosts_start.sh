#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What several hosts refuse at the start, in one line for the job.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
export KUMI_CACHE=$dir/cache
say() { echo "$*"; failed=1; }
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=("$PWD/configs/shakespeare-fast.json" --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=1 --set model.n_embd=32
    --set model.n_head=2 --set train.threads=1 --set train.virtual_shards=8 --set train.micro_batch=1 --set train.global_batch=8
    --set train.steps=3 --set train.eval_tokens=16 --set data.seq_len=16)
# refuse CODE WORDS ARGS..: one line with these words
refuse() {
    local code=$1 words=$2
    shift 2
    timeout 120 "$kumi" train "${config[@]}" --out "$dir/refused" "$@" >"$dir/log" 2>&1
    local is=$?
    [ $is = "$code" ] && grep -q -e "$words" "$dir/log" && [ "$(grep -c 'kumi: error' "$dir/log")" = 1 ] || say "$*: exit $is: $(cat "$dir/log")"
    rm -rf "$dir/refused"
}

# no rank can open its communicators: one of them says so
unset OMPI_COMM_WORLD_SIZE PMIX_RANK PMI_RANK PMI_FD PMI_PORT KUMI_MPI
for _ in 1 2 3; do refuse 2 'mpi: no MPI launcher started this rank' -H a:2,b:2,c:1 --rsh none --set parallel.transport=mpi; done
exit $failed
