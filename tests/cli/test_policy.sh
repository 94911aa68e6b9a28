#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The precision policy from outside: one digest under every layout, the header, DeepSpeed's words for it, checkpoints in another precision, what is read back.
. "$2/tests/cli/begin.sh"
small=(configs/shakespeare-char.json --set train.steps=6 --set model.n_layer=1 --set model.n_embd=32 --set train.virtual_shards=2 --set train.global_batch=8
    --set train.micro_batch=2 --set train.eval_tokens=512 --set train.threads=1)
policy=(--set precision.compute=bf16 --set precision.master=false --set precision.stochastic_rounding=true --set precision.grads=bf16
    --set 'precision.keep_f32=["mlp"]')
run() { # name, arguments
    timeout 120 "$kumi" train "${small[@]}" --out "$dir/$1" "${@:2}" >"$dir/$1.out" 2>"$dir/$1.err" || say "$1: $(tail -3 "$dir/$1.err")"
}
digest() { "$kumi" ckpt digest "$dir/$1" 2>&1; }
run one "${policy[@]}"
grep -q ', bf16, no master, updates rounded stochastically, gradients bf16, f32: mlp on ' "$dir/one.err" || say "header: $(grep kumi: "$dir/one.err")"
run two "${policy[@]}" -n 2
run dealt "${policy[@]}" -n 2 --set parallel.host_state=private --set parallel.zero=3 --set memory.recompute=full
[ "$(digest one)" = "$(digest two)" ] && [ "$(digest one)" = "$(digest dealt)" ] || say 'digests differ among layouts'
run plain --set precision.compute=bf16
[ "$(digest one)" != "$(digest plain)" ] || say 'the policy changes nothing'

# Dtypes by module of a Llama: one digest under every layout, the header, a resume under other rules, what reads the checkpoint.
llama=(configs/llama-tiny.json --set train.steps=4 --set model.num_hidden_layers=2 --set model.hidden_size=32 --set model.intermediate_size=64
    --set train.virtual_shards=2 --set train.global_batch=8 --set train.micro_batch=2 --set train.eval_tokens=512 --set train.threads=1)
by_module='precision.modules=[{"match": "model.layers.*.mlp", "param": "bf16", "compute": "bf16", "reduce": "bf16", "output": "f32"},
    {"match": "self_attn", "compute": "f16"}, {"match": ["embed_tokens", "norm"], "reduce": "f16"}]'
train_llama() { # name, arguments
    timeout 120 "$kumi" train "${llama[@]}" --set "$by_module" --out "$dir/$1" "${@:2}" >"$dir/$1.out" 2>"$dir/$1.err" || say "$1: $(tail -3 "$dir/$1.err")"
}
train_llama modules
grep -q ', f32, model.layers.\*.mlp: param bf16 compute bf16 reduce bf16 output f32, self_attn: compute f16, embed_tokens norm: reduce f16 on ' \
    "$dir/modules.err" || say "header: $(grep kumi: "$dir/modules.err")"
layouts=('-n 2' '-n 2 --set parallel.share_host_state=false' '-n 2 --set parallel.share_host_state=false --set parallel.zero=3 --set memory.recompute=full'
    '-n 2 --set parallel.share_host_state=false --set parallel.zero=3 --set memory.offload={"optimizer":"host","params":"host","activations":"host"}'
    '--set memory.recompute=selective --set train.threads=2')
for i in "${!layouts[@]}"; do
    # shellcheck disable=SC2086
    train_llama "modules$i" ${layouts[i]}
    [ "$(digest modules)" = "$(digest "modules$i")" ] || say "dtypes by module: ${layouts[i]}: digests differ"
done
timeout 60 "$kumi" train "${llama[@]}" --out "$dir/modules" --resume --set train.steps=6 --set 'precision.modules=[{"match": "mlp", "compute": "bf16"}]' \
    >/dev/null 2>"$dir/err"
[ $? = 2 ] && grep -q 'precision.modules (was \[' "$dir/err" || say "other rules: $(cat "$dir/err")"
train_llama modules --resume --set train.steps=6
timeout 60 "$kumi" eval "$dir/modules" >"$dir/out" 2>"$dir/err" || say "eval by module: $(cat "$dir/err")"
timeout 60 "$kumi" sample "$dir/modules" --prompt A --tokens 4 >"$dir/out" 2>"$dir/err" || say "sample by module: $(cat "$dir/err")"
timeout 60 "$kumi" train "${llama[@]}" --out "$dir/refused" --set 'precision.modules=[{"match": "model.layers.*.mpl", "compute": "bf16"}]' >/dev/null 2>"$dir/err"
[ $? = 2 ] && grep -q 'precision.modules\[0\]: match: model.layers.\*.mpl: no module has such a path; the nearest is model.layers.0.mlp' "$dir/err" ||
    say "no such module: $(cat "$dir/err")"

# DeepSpeed's words: the same run, and what became of them.
printf '{"bf16":{"enabled":true,"bf16_master_weights_and_grads":true},"zero_optimization":{"stage":1},"communication_data_type":"bf16"}' >"$dir/ds.json"
printf '{"bf16":{"enabled":true},"zero_optimization":{"stage":1}}' >"$dir/plain.json"
run theirs -n 2 --set precision={} --deepspeed "$dir/ds.json"
run ours -n 2 --set 'precision={"master":false,"grads":"bf16","reduce":"bf16"}' --deepspeed "$dir/plain.json"
[ "$(digest theirs)" = "$(digest ours)" ] || say "DeepSpeed's keys: $(digest theirs), ours: $(digest ours)"
"$kumi" plan "${small[@]}" -n 2 --set precision={} --deepspeed "$dir/ds.json" >"$dir/plan" 2>&1
grep -q '^memory plan: 2 ranks on one host, cpu, bf16, no master, gradients bf16$' "$dir/plan" || say "plan: $(head -1 "$dir/plan")"

# A checkpoint without a master goes on with one, when that is wanted, and is exact; back again it is rounded.
cp -r "$dir/one" "$dir/wide"
timeout 60 "$kumi" train "${small[@]}" --set precision.compute=bf16 --out "$dir/wide" --resume --set train.steps=8 >/dev/null 2>"$dir/err"
[ $? = 2 ] && grep -q 'precision.grads.*differs\{0,1\} from the checkpoint' "$dir/err" || say "another policy: $(cat "$dir/err")"
run wide --set precision.compute=bf16 --resume --allow-change --set train.steps=8
run wide "${policy[@]}" --resume --allow-change --set train.steps=10
python3 - "$dir" <<'P' || failed=1
import glob, json, struct, sys
def dtypes(run, step, file):
    with open(f"{sys.argv[1]}/{run}/checkpoints/step-{step:08d}/{file}/{file}.safetensors", "rb") as f:
        return {k: v["dtype"] for k, v in json.loads(f.read(struct.unpack("<Q", f.read(8))[0])).items() if k != "__metadata__"}
want = lambda name: "BF16" if ("attn" in name or name[:4] in ("wte.", "wpe.")) and name.endswith(".weight") else "F32"
for run, step in ("one", 6), ("wide", 10):
    got = dtypes(run, step, "model")
    assert got == {name: want(name.removeprefix("transformer.")) for name in got}, got
    assert set(dtypes(run, step, "optimizer").values()) == {"F32"}
assert set(dtypes("wide", 8, "model").values()) == {"F32"}
P
timeout 60 "$kumi" eval "$dir/one" >"$dir/out" 2>"$dir/err" || say "eval: $(cat "$dir/err")"
timeout 60 "$kumi" sample "$dir/one" --prompt A --tokens 4 >"$dir/out" 2>"$dir/err" || say "sample: $(cat "$dir/err")"
timeout 60 "$kumi" ckpt export "$dir/one" --to "$dir/export" >"$dir/out" 2>"$dir/err" || say "export: $(cat "$dir/err")"
exit $failed
