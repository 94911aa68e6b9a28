#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi train with ps.workers: the digest of an all-reduce run of as many ranks, resumes from one to the other, and refusals.
. "$2/tests/cli/begin.sh"
python3 - "$dir" <<'P'
import json, random, sys
dir, r = sys.argv[1], random.Random(1)
open(f"{dir}/t.txt", "w").write("".join(r.choice("abcdefgh ") for _ in range(20000)))
base = {"data": {"train": f"{dir}/t.txt", "seq_len": 16}, "train": {"steps": 4, "global_batch": 16, "micro_batch": 2, "virtual_shards": 4, "threads": 1}}
gpt2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
json.dump(base | {"model": gpt2}, open(f"{dir}/c.json", "w"))
P
run() { # folder, option..: prints the digest
    local out=$1
    shift
    timeout 60 "$kumi" train "$dir/c.json" --out "$dir/$out" "$@" 2>&1 | sed -n 's/^digest: //p'
}
no() { # text, option..
    local text=$1 got is
    shift
    got=$(timeout 60 "$kumi" train "$dir/c.json" --out "$dir/no" "$@" 2>&1 >/dev/null)
    is=$?
    [ $is = 2 ] && [[ $got == *"kumi: error: $text"* ]] && [ "$(grep -c '^kumi: error:' <<<"$got")" = 1 ] || {
        printf 'kumi train %s\n  wanted 2: %s\n  got    %s: %s\n' "$*" "$text" $is "$got"
        failed=1
    }
}
same() { # what, digest, digest
    [ -n "$2" ] && [ "$2" = "$3" ] || {
        printf '%s: %s, wanted %s\n' "$1" "$2" "$3"
        failed=1
    }
}
want=$(run all -n 4)
same "4 workers, 3 servers" "$(run ps --set ps.workers=4 --set ps.servers=3)" "$want"
run half -n 2 --until 2 >/dev/null
same "all-reduce, then a parameter server" "$(run half --resume --set ps.workers=2 --set ps.servers=2)" "$want"
run other --set ps.workers=2 --until 2 >/dev/null
same "a parameter server, then all-reduce" "$(run other --resume -n 4)" "$want"
# Compressed pushes: equal on any servers, stopped and resumed, from the newest checkpoint and from the one before.
for form in int8 topk; do
    on=(--set ps.workers=2 --set ps.compression=$form --set train.steps=6 --set checkpoint.every=2 --set checkpoint.keep=0)
    want=$(run $form "${on[@]}")
    same "$form, 3 servers" "$(run $form-3 "${on[@]}" --set ps.servers=3)" "$want"
    run $form-r "${on[@]}" --until 5 >/dev/null
    cp -r "$dir/$form-r" "$dir/$form-old"
    same "$form, resumed" "$(run $form-r "${on[@]}" --resume)" "$want"
    rm -r "$dir/$form-old/checkpoints/"*5 "$dir/$form-old/workers/"*.residual
    same "$form, resumed at step 4" "$(run $form-old "${on[@]}" --resume)" "$want"
    got=$("$kumi" train "$dir/c.json" --out "$dir/$form-old" --set train.steps=6 --resume -n 2 2>&1)
    [[ $got == *"ps.compression (was \"$form\", is \"none\")"* ]] || {
        echo "$form, then all-reduce: $got"
        failed=1
    }
done
no "ps.compression: the loss scale" --set ps.workers=2 --set ps.compression=int8 --set precision.compute=f16
no "ps.compression: gradient." --set ps.workers=2 --set ps.compression=int8 --set precision.reduce=bf16
no "config: --set ps.compression=int4: ps.compression: \"int4\"; one of" --set ps.compression=int4
no "config: --set ps.topk=5000: ps.topk: 5000" --set ps.topk=5000
got=$("$kumi" plan "$dir/c.json" --set ps.workers=2 --set ps.compression=topk --json)
[[ $got == *'"feedback_bytes": 65536'* ]] || {
    echo "plan of topk: $got"
    failed=1
}
for mode in async ssp; do
    [ -n "$(run $mode --set ps.workers=2 --set ps.servers=2 --set ps.mode=$mode)" ] || failed=1
done
"$kumi" eval "$dir/ps" --out "$dir/none" >/dev/null 2>&1 || "$kumi" eval "$dir/ps" >/dev/null || failed=1
same "sample" "$("$kumi" sample "$dir/ps" --tokens 8)" "$("$kumi" sample "$dir/all" --tokens 8)"
no "ps.workers: 2 ranks; kumi train runs workers and servers as threads of one process" --set ps.workers=2 -n 2 --set parallel.transport=thread
no "ps.backup: 2; 2 workers: at most 1 late ones" --set ps.workers=2 --set ps.backup=2
no "train.epochs: with ps.mode async and ssp" --set ps.workers=2 --set ps.mode=async --set train.steps=null --set train.epochs=1
no "ps: a worker is one rank" --set ps.workers=2 --set parallel.tp=2
no "ps: a worker has no optimizer state to divide" --set ps.workers=2 --set parallel.zero=1
no "ps: parallel.grad_sync: micro" --set ps.workers=2 --set parallel.grad_sync=micro
exit $failed
