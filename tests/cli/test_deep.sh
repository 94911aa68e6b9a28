#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Deep models compile in time that grows as their layers do: deadlines are twenty times what is usual, and far below
# what work that grows with the square would take.
. "$2/tests/cli/begin.sh"
cd "$dir" || exit 1
model='{"model_type":"gpt2","n_layer":2,"n_head":1,"n_embd":8,"n_positions":8,"vocab_size":256}'
printf '{"model":%s,"data":{"train":"text","tokenizer":"byte","seq_len":8,"val_fraction":0},"train":{"steps":1,"global_batch":2}}' "$model" >gpt2.json
printf '{"model":{"model_type":"resnet","depth":1202,"num_classes":10},"data":{"kind":"cifar10","train":"none"},"train":{"steps":1,"global_batch":2}}' >resnet.json
head -c 200 /dev/zero | tr '\0' a >text
within() { # seconds, arguments
    local deadline=$1
    shift
    timeout "$deadline" "$kumi" "$@" >out 2>err || say "kumi $*: $? within $deadline s: $(head -c 300 err)"
}
private='--set parallel.host_state=private --set parallel.persist_below=0'
within 80 graph gpt2.json --set model.n_layer=2000
[ "$(grep -c '^ *[0-9]* 0O adamw ' out)" = 24004 ] || say '2000 layers: not an update for each parameter'
# shellcheck disable=SC2086
within 40 graph gpt2.json --set model.n_layer=400 -n 2 $private --set parallel.zero=3 --set memory.recompute=selective --set precision.compute=bf16
within 40 graph gpt2.json --set model.n_layer=400 --set memory.offload.optimizer=file --set memory.offload.path=.
within 80 graph resnet.json
within 80 plan gpt2.json --set model.n_layer=200 -n 2
grep -q '^ways to reduce it:$' out || say 'no advice'
within 60 train gpt2.json --set model.n_layer=400 --out run
within 40 sample run --tokens 2
within 20 ckpt export run --to weights
within 20 ckpt import weights --to again
exit $failed
