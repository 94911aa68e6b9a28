#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One training under nine parallel layouts: examples/layouts.sh [STEPS] [KUMI] [KEY=VALUE].. All print the same digest.
set -eu
cd "$(dirname "$0")/.."
steps=${1:-20} kumi=${2:-build/kumi}
shift $(($# < 2 ? $# : 2))
settings=()
for key in "$@"; do settings+=(--set "$key"); done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
first=
printf '%-35s ranks   digest\n' layout

train() { # what, ranks, keys..
    local what=$1 n=$2 key digest keys=(--set parallel.tp_exact=2)
    shift 2
    for key in "$@"; do keys+=(--set "parallel.$key"); done
    "$kumi" train configs/shakespeare-char.json -n "$n" --until "$steps" --out "$dir/run" --overwrite \
        --set train.global_batch=16 --set train.micro_batch=1 --set train.virtual_shards=4 "${settings[@]}" "${keys[@]}" >"$dir/log" 2>&1 ||
        { cat "$dir/log" >&2; exit 1; }
    digest=$(sed -n 's/^digest: //p' "$dir/log")
    printf '%-38s %d   %s\n' "$what" "$n" "$digest"
    first=${first:-$digest}
    [ -n "$digest" ] && [ "$digest" = "$first" ] || { echo 'the digests differ' >&2; exit 1; }
}

train 'one rank' 1
train 'data parallel, one copy of the state' 4
train 'data parallel, a copy on each rank' 4 host_state=private
train 'ZeRO 3' 4 host_state=private zero=3
train 'HYBRID_SHARD, 2 replicas of 2 shards' 4 host_state=private strategy=HYBRID_SHARD replicate=2
train 'pipeline of 2, 1F1B, 2 data-parallel' 4 pp=2
train 'pipeline of 4, ZB-H1' 4 pp=4 pp_schedule=zb-h1
train 'tensor parallel of 2, ZeRO 1' 4 tp=2 zero=1
train 'tensor parallel of 2, pipeline of 2' 4 tp=2 pp=2
