#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The instruction set of a run: chosen by the stored rates, shown by `kumi info`, in the manifest, named at a resume.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
say() { echo "$*"; exit 1; }
"$kumi" info --json >"$dir/info.json" || say "info --json failed"
cp "$dir/cache/kernels.json" "$dir/measured.json" || say "the rates are not stored"
python3 - "$dir/info.json" "$dir/measured.json" <<'E2' || say "info and the stored rates differ"
import json, sys
info, rows = (json.load(open(p)) for p in sys.argv[1:])
kernels, row = info["kernels"], rows[0]
assert len(rows) == 1 and row["identity"] == kernels["identity"] and info["cpu"]["model"] in row["identity"], row
for dtype in "f32", "bf16":
    flops = kernels[dtype]["flops"]
    assert flops.keys() == row[dtype].keys(), (flops, row)
    assert all(abs(flops[k] / row[dtype][k] - 1) < 1e-4 for k in flops), (flops, row)
    best, chosen = max(flops.values()), flops[kernels[dtype]["isa"]]
    assert chosen * 1.11 > best, kernels
E2
"$kumi" info | grep -A1 '^kernels ' >"$dir/kernels" || say "info does not show the kernels"
[ "$(grep -c 'GFLOP/s a core: ' "$dir/kernels")" = 2 ] || say "info: $(cat "$dir/kernels")"
grep -q avx2 "$dir/measured.json" || exit 0 # one set: there is no choice

rates() { # dtype isa: as if this set were the fastest for the dtype
    python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))
rates = rows[0][sys.argv[2]]
for k in rates: rates[k] = 9e9 if k == sys.argv[3] else 1e9
json.dump(rows, open(sys.argv[4], "w"))' "$dir/measured.json" "$1" "$2" "$dir/cache/kernels.json"
}
run=(train configs/shakespeare-fast.json -n 2 --set model.n_layer=1 --set model.n_embd=32 --set train.threads=1
    --set train.global_batch=4 --set data.seq_len=16 --set train.eval_tokens=64 --set train.steps=4 --set checkpoint.every=2)
isa_of() { "$kumi" ckpt list "$1" --json | grep -q . && python3 -c 'import json, glob, sys; print(json.load(open(sorted(glob.glob(sys.argv[1] + "/checkpoints/step-*/manifest.json"))[-1]))["isa"])' "$1"; }
for dtype in f32 bf16; do
    rates $dtype avx2
    "$kumi" "${run[@]}" --set precision.compute=$dtype --out "$dir/$dtype" --until 2 >/dev/null 2>"$dir/err" || say "train: $(cat "$dir/err")"
    grep -q ' on avx2, ' "$dir/err" || say "$dtype: not on avx2: $(cat "$dir/err")"
    [ "$(isa_of "$dir/$dtype")" = avx2 ] || say "$dtype: the manifest has $(isa_of "$dir/$dtype")"
done
# one choice for each dtype: bf16's rates do not move f32
rates bf16 avx2
"$kumi" "${run[@]}" --set precision.compute=f32 --out "$dir/other" --until 2 >/dev/null 2>"$dir/err" || say "train: $(cat "$dir/err")"
top=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["cpu"]["isa"])' "$dir/info.json")
[ "$top" = avx2 ] || ! grep -q ' on avx2, ' "$dir/err" || say "f32 follows bf16's rates: $(cat "$dir/err")"
# a sample takes the set of the dtype in which it computes, and all cores, not the threads of a rank of the training
cores=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["cpu"]["cores"])' "$dir/info.json")
"$kumi" ckpt export "$dir/other" --to "$dir/weights" 2>"$dir/err" || say "export: $(cat "$dir/err")"
for from in "$dir/other" "$dir/weights"; do
    KUMI_LOG=exec:info "$kumi" sample "$from" --tokens 2 --dtype bf16 >/dev/null 2>"$dir/err" || say "sample: $(cat "$dir/err")"
    grep -q "sample: bf16 on avx2, threads: $cores\$" "$dir/err" || say "sample $from --dtype bf16: $(cat "$dir/err")"
done
# a resume where the choice differs says so, and goes on; pinned to the first choice its bits continue
[ "$top" = avx2 ] && exit 0
cp -r "$dir/bf16" "$dir/pinned"
rates bf16 "$top"
"$kumi" "${run[@]}" --set precision.compute=bf16 --out "$dir/bf16" --resume >/dev/null 2>"$dir/err" || say "resume: $(cat "$dir/err")"
grep -q "instruction set (was avx2, is $top); its results do not continue bit for bit" "$dir/err" || say "resume: $(cat "$dir/err")"
rates bf16 avx2
"$kumi" "${run[@]}" --set precision.compute=bf16 --out "$dir/whole" >/dev/null 2>"$dir/err" || say "train: $(cat "$dir/err")"
rates bf16 "$top"
"$kumi" "${run[@]}" --set precision.compute=bf16 --set parallel.isa=avx2 --out "$dir/pinned" --resume >/dev/null 2>"$dir/err" || say "resume: $(cat "$dir/err")"
[ "$("$kumi" ckpt digest "$dir/pinned")" = "$("$kumi" ckpt digest "$dir/whole")" ] || say "pinned to the first choice, the bits differ"
