#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# train.verify_every: a bit flipped in the copy of one rank ends the run with exit code 9, the tensor and the rank.
. "$2/tests/cli/begin.sh"
small=(configs/shakespeare-fast.json --set train.virtual_shards=4 --set train.global_batch=4 --set model.n_layer=1 --set train.steps=3 --set train.eval_every=0
    --set train.eval_tokens=1024 --set checkpoint.every=0 --set train.verify_every=2 --set parallel.share_host_state=false --out "$dir/run" --overwrite)
# $1: ranks; $2: the rank whose N-th compared tensor has a flipped bit; $3: N; $4: expected; then options
flip() {
    local n=$1 rank=$2 at=$3 want=$4 got code
    shift 4
    # shellcheck disable=SC2016
    got=$(timeout 120 "$kumi" run -n "$n" -- sh -c '[ $RANK != '"$rank"' ] || export KUMI_FAULT=flip:'"$at"'; exec "$@"' sh "$kumi" train "${small[@]}" "$@" 2>&1)
    code=$?
    [[ $code = 9 && $got =~ $want && $got == *"step 1/3"* ]] || { echo "$want: exit $code: $got"; failed=1; }
}
differ() { echo "kumi: error: replicas differ: $1: rank $2 differs from rank $3; the memory of the machine or the program is faulty"; }
flip 2 1 1 "$(differ 'wpe\.weight' 1 0)"
flip 2 1 40 "$(differ 'h\.0\.[a-z0-9_.]*\.exp_avg(_sq)?' 1 0)"
zero=(--set precision.compute=f32 --set parallel.zero=2)
flip 4 2 1 "$(differ 'wpe\.weight' 2 0)" "${zero[@]}"
hybrid=(--set parallel.zero=3 --set parallel.replicate=2) # 2 x 2: ranks 1 and 3 have the same parts
flip 4 3 5 "$(differ '[a-z0-9_.]*\.(weight|bias)' 3 1)" "${hybrid[@]}"
flip 4 3 28 "$(differ '[a-z0-9_.]*\.exp_avg(_sq)?' 3 1)" "${hybrid[@]}"
# stages of a pipeline: ranks 2 and 3 have copies of the second one
stages=(--set parallel.pp=2 --set model.n_layer=2 --set train.virtual_shards=2 --set parallel.share_host_state=null)
flip 4 3 1 "$(differ 'h\.1\.[a-z0-9_.]*\.(weight|bias)' 3 2)" "${stages[@]}"
flip 4 1 2 "$(differ '[a-z0-9_.]*\.(weight|bias)' 1 0)" "${stages[@]}"
# shared state: the counters, which every rank has
flip 2 1 1 "$(differ 'update' 1 0)" --set parallel.share_host_state=true
# hosts of which each has one copy: a rank's chunks are compared with those of the same local rank on the other host
hosts=(--set parallel.zero=0 --set parallel.host_state=shared --set parallel.share_host_state=null)
across() { # RANK N EXPECTED
    local got code
    # shellcheck disable=SC2016
    got=$(timeout 120 "$kumi" run -H a:2,b:2 --rsh none -- sh -c '[ $RANK != '"$1"' ] || export KUMI_FAULT=flip:'"$2"'; exec "$@"' sh "$kumi" train "${small[@]}" \
        "${hosts[@]}" 2>&1)
    code=$?
    [[ $code = 9 && $got =~ $3 && $got == *"step 1/3"* ]] || { echo "$3: exit $code: $got"; failed=1; }
}
across 2 2 "$(differ '[a-z0-9_.]*\.(weight|bias)' 2 0)"
across 3 20 "$(differ '[a-z0-9_.]*\.exp_avg(_sq)?' 3 1)"
exit $failed
