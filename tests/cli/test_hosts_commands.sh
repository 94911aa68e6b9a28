#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi eval, bench and plan on several hosts, which this machine pretends to be: the loss of one process on every layout; rows of benchmarks; a
# hostfile is a list of hosts; what cannot be is refused before a rank runs.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
export KUMI_CACHE=$dir/cache
say() { echo "$*"; failed=1; }
head -c 20000 "$source/docs/internals/numerics.md" >text # any text
config=("$source/configs/shakespeare-fast.json" --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=1 --set model.n_embd=96
    --set train.virtual_shards=8 --set train.micro_batch=1 --set train.global_batch=16 --set train.eval_tokens=128 --set data.seq_len=32)
printf 'a slots=1\nb slots=2 # uneven\n' >hostfile

# evaluation: equal bits, whether the ranks of a host share the parameters or not
timeout 120 "$kumi" train "${config[@]}" --set train.steps=2 --set train.ema=0.5 --out run >log 2>&1 || say "train: $(cat log)"
"$kumi" ckpt export run --to weights >log 2>&1 || say "export: $(cat log)"
for of in run 'run --ema' 'weights --data text --seq-len 32 --tokenizer byte'; do
    # shellcheck disable=SC2086
    timeout 120 "$kumi" eval $of --json >one 2>log || say "eval $of: $(cat log)"
    grep -q '"val_loss":[0-9]' one || say "eval $of: $(cat one)"
    for where in '-H a:2,b:2' '--hostfile hostfile' '-H a:2,b:2,c:2 -n 5'; do
        # shellcheck disable=SC2086
        timeout 120 "$kumi" eval $of --json $where --rsh none >two 2>log
        [ $? = 0 ] && cmp -s one two || say "eval $of $where: $(cat one two log)"
    done
done
cmp -s one <(timeout 120 "$kumi" eval run --json) && say 'two evaluations have one result'

# collectives
timeout 120 "$kumi" bench comm all_reduce -H a:2,b:1 --rsh none --bytes 4096 --dtype f32 >rows 2>log || say "bench comm: $(cat log)"
grep -q '; 3 ranks x 1 thread$' rows && grep -q ' 3 processes on 2 hosts$' rows && [ "$(grep -c '^all_reduce .* 4096 ' rows)" = 3 ] || say "bench comm: $(cat rows)"
timeout 120 "$kumi" bench comm barrier --hostfile hostfile --rsh none --json >rows 2>log || say "bench comm: $(cat log)"

# scaling: 1, 2, .. all slots; the rows of the counts are those of a run on one host
timeout 120 "$kumi" bench scaling "${config[@]}" -H a:2,b:2 --rsh none --steps 8 --json >scaling 2>log || say "bench scaling: $(cat log)"
python3 - <<'P' || failed=1
import json
rows = lambda name: [json.loads(line) for line in open(name)]
row, = rows("rows")
assert (row["collective"], row["hosts"], row["ranks"]) == ("barrier", 2, 3) and row["median_us"] > 0, row
some = rows("scaling")
assert [r["ranks"] for r in some] == [1, 2, 4] and all(r["tokens"] == 16 * 32 and len(r["rank_wait_ms"]) == r["ranks"] for r in some), some
P
timeout 120 "$kumi" bench scaling "${config[@]}" --hostfile hostfile -n 1,2 --rsh none --steps 8 >scaling 2>log || say "bench scaling: $(cat log)"
grep -q '; 2 hosts$' scaling && [ "$(grep -c '^ *[12] ' scaling)" = 2 ] || say "bench scaling: $(cat scaling)"
[ -z "$(ls -d kumi-scaling-* 2>/dev/null)" ] || say "bench scaling left $(ls)"

# kumi plan: a file is a list
"$kumi" plan "${config[@]}" -n 2 -H a:1,b:2 >list 2>&1 && "$kumi" plan "${config[@]}" -n 2 --hostfile hostfile >file 2>&1 && cmp -s <(grep -v '^available now' list) <(grep -v '^available now' file) &&
    grep -q '^memory plan: 2 ranks on 2 hosts' file || say "plan --hostfile: $(cat list file)"

refuse() { # WORDS COMMAND..: in one line
    local words=$1
    shift
    timeout 60 "$kumi" "$@" >log 2>&1
    local is=$?
    [ $is = "${code:-2}" ] && grep -q -e "$words" log && [ "$(grep -c 'kumi: error' log)" = 1 ] || say "$*: exit $is: $(cat log)"
}
refuse '-H and --hostfile exclude each other' eval run -H a:1 --hostfile hostfile
refuse 'slots from 1 to 512' eval run -H a:0 --rsh none
refuse '--bleu runs as one process; leave out -H' eval run --bleu --hostfile hostfile
refuse '--rsh goes only with -H' bench comm --rsh none
refuse '-H does not apply to it' bench peak -H a:1,b:1
refuse 'the 2 hosts have 3 slots' bench scaling "${config[@]}" --hostfile hostfile -n 1,4
refuse 'hosts with different numbers of ranks; give private' bench scaling "${config[@]}" --set parallel.host_state=shared -H a:2,b:2,c:2 -n 1,2,4,3
refuse 'virtual_shards: 8 on 3 ranks' bench scaling "${config[@]}" --hostfile hostfile
refuse '-H and --hostfile exclude each other' plan "${config[@]}" -H a:1 --hostfile hostfile
code=3 refuse 'hosts: none: No such file' plan "${config[@]}" --hostfile none
refuse '-H needs CONFIG' plan --params 1e9 --hostfile hostfile
refuse '-H goes only with --memory and --mesh' plan "${config[@]}" --hostfile hostfile --stages
exit $failed
