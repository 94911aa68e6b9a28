#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training on several hosts, which this machine pretends to be: one digest with one host, in every layout; checkpoints cross layouts; a rank that
# is killed or stopped is named with its host; what several hosts do not have is refused.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=2 --set model.n_embd=96
    --set train.threads=1 --set train.virtual_shards=8 --set train.micro_batch=1 --set train.global_batch=16 --set train.steps=3
    --set train.eval_tokens=128 --set data.seq_len=32 --set parallel.persist_below=0)
private=(--set parallel.host_state=private --set parallel.zero=0)
shared=(--set parallel.host_state=shared)
# train NAME HOSTS more..: HOSTS as a:2,b:2, or -n 4 as 4. Several hosts have a second line of the header.
train() {
    local name=$1 where=(-H "$2" --rsh none) hosts=${2//[^,]/} header
    [[ $2 == *:* ]] || where=(-n "$2")
    header=$([[ $2 != *:* ]] || echo "kumi: $((${#hosts} + 1)) hosts by tcp over lo 127.0.0.1")
    shift 2
    timeout 300 "$kumi" train "${config[@]}" "${where[@]}" --out "$dir/$name" "$@" >"$dir/log" 2>&1 || say "$name: $(cat "$dir/log")"
    [ "$(grep -o 'kumi: [0-9]* hosts by .*' "$dir/log")" = "$header" ] || say "$name: not \"$header\": $(cat "$dir/log")"
    "$kumi" ckpt digest "$dir/$name" 2>>"$dir/log" | tail -1 >"$dir/$name.digest"
    [ -s "$dir/$name.digest" ] || say "$name: no digest: $(cat "$dir/log")"
}
same() { # name names..
    local first=$1
    shift
    for name in "$@"; do cmp -s "$dir/$first.digest" "$dir/$name.digest" || say "$first and $name: digests differ"; done
}

# f32, two micro-batches for each shard
train one 1
train two a:1,b:1 "${private[@]}"
train square a:2,b:2 --set parallel.bucket_mb=0.01 "${private[@]}"
train four a:1,b:1,c:1,d:1 "${private[@]}"
train uneven a:1,b:3 --set parallel.zero=0
train divided a:1,b:3 # zero 1
train three a:2,b:1,c:1 --set parallel.overlap=false
train eight a:4,b:4 --set parallel.zero=3 --set parallel.shard=4
train hybrid a:2,b:2 --set parallel.zero=2 --set parallel.shard=2 --set checkpoint.async=true --set checkpoint.every=1
same one two square four uneven divided three eight hybrid
# the ranks of each host share one copy of the state
train shared a:2,b:2 --set parallel.zero=0 --set parallel.bucket_mb=0.01 --set train.verify_every=1
train default a:2,b:2 --set parallel.bucket_mb=0.01 --set train.verify_every=1 # zero 1
train shared-async a:2,b:2,c:2,d:2 "${shared[@]}" --set parallel.zero=0 --set checkpoint.async=true --set checkpoint.every=1
train shared-one a:1,b:1 "${shared[@]}"
same one shared default shared-async shared-one
six=(--set train.virtual_shards=6 --set train.global_batch=12)
train six 1 "${six[@]}"
train six-hosts a:2,b:2,c:2 "${six[@]}" "${shared[@]}"
train six-odd a:3,b:3 "${six[@]}" "${shared[@]}" --set optimizer.type=adamw --set memory.offload.optimizer=host
same six six-hosts six-odd
layerwise=(--set optimizer.type=lamb)
train lamb 2 "${layerwise[@]}"
train lamb-shared a:2,b:2 "${layerwise[@]}" "${shared[@]}"
same lamb lamb-shared
# bf16 on the wire, rounded at every node of the tree
narrow=(--set precision.compute=bf16 --set precision.reduce=bf16 --set parallel.grad_sync=micro)
train narrow 4 "${narrow[@]}"
train narrow-hosts a:2,b:2 "${narrow[@]}" "${private[@]}"
train narrow-four a:1,b:1,c:1,d:1 "${narrow[@]}" "${private[@]}"
train narrow-shared a:2,b:2 "${narrow[@]}" "${shared[@]}"
same narrow narrow-hosts narrow-four narrow-shared
cmp -s "$dir/one.digest" "$dir/narrow.digest" && say "bf16 and f32 have one digest"

# bytes between hosts: those planned were sent, to the byte
for name in two square four shared default hybrid eight narrow-hosts narrow-shared uneven divided three; do
    python3 - "$dir/$name/summary.json" <<'EOF' || say "$name: bytes between hosts"
import json, sys
step = json.load(open(sys.argv[1]))["exchanged_a_step"]
planned, sent = step["planned_far_bytes"], step["far_bytes"]
assert 0 < planned == sent, step
assert step["planned_bytes"] == step["moved_bytes"], step
EOF
done
grep -q far_bytes "$dir/one/summary.json" "$dir/narrow/summary.json" && say "bytes between hosts on one host"

# kumi plan -H: the bytes and the memory of the run
planned() { # name args..
    local name=$1
    shift
    "$kumi" plan "${config[@]}" "$@" --json >"$dir/plan.json" 2>"$dir/log" || say "plan $*: $(cat "$dir/log")"
    python3 - "$dir/plan.json" "$dir/$name/summary.json" <<'EOF' || say "plan $*: not what the run counted"
import json, sys
plan, run = (json.load(open(p)) for p in sys.argv[1:])
assert sum(r["far_bytes"] for r in plan["sharding"]["a_step"]) == run["exchanged_a_step"]["planned_far_bytes"], plan["sharding"]
assert plan["host_bytes"] == run["memory_planned_bytes"] and plan["exchange_bytes"] > 0, (plan["host_bytes"], run)
assert len(plan["hosts"]) > 1
EOF
}
planned two -H a:1,b:1 "${private[@]}"
planned shared -H a:2,b:2 --set parallel.zero=0 --set parallel.bucket_mb=0.01 --set train.verify_every=1
planned eight -H a:4,b:4 --set parallel.zero=3 --set parallel.shard=4
"$kumi" plan "${config[@]}" -H a:2,b:2 >"$dir/plan" 2>&1
grep -q '^memory plan: 4 ranks on 2 hosts' "$dir/plan" && grep -q 'parallel.zero 1: the default on several hosts' "$dir/plan" && grep -q 'between hosts' "$dir/plan" || say "plan -H: $(cat "$dir/plan")"
for bad in '-H a:2,b:2 -n 5' '-H a:x' '-H a:2,b:2 --roofline' '-H a:2,b:1 --set parallel.host_state=shared'; do
    # shellcheck disable=SC2086
    "$kumi" plan "${config[@]}" $bad >"$dir/plan" 2>&1
    [ $? = 2 ] && [ "$(grep -c '^kumi: error: ' "$dir/plan")" = 1 ] || say "plan $bad: $(cat "$dir/plan")"
done

# a run goes on in another layout, with the same bits
train resumed a:2,b:2 --until 1 "${private[@]}"
for where in "-n 2" "-H a:1,b:1 --rsh none" "-H a:3,b:1 --rsh none --set parallel.zero=0" \
    "-H a:4,b:4 --rsh none --set parallel.host_state=shared"; do
    rm -rf "$dir/again" && cp -r "$dir/resumed" "$dir/again"
    # shellcheck disable=SC2086
    timeout 300 "$kumi" train "${config[@]}" $where --out "$dir/again" --resume=auto >"$dir/log" 2>&1 || say "resume, $where: $(cat "$dir/log")"
    "$kumi" ckpt digest "$dir/again" | tail -1 | cmp -s - "$dir/one.digest" || say "resume, $where: digests differ"
done

train halted a:2,b:2 --until 1 "${shared[@]}"
for where in "-n 2" "-H a:2,b:2 --rsh none" "-H a:3,b:1 --rsh none"; do
    rm -rf "$dir/again" && cp -r "$dir/halted" "$dir/again"
    # shellcheck disable=SC2086
    timeout 300 "$kumi" train "${config[@]}" $where --out "$dir/again" --resume=auto >"$dir/log" 2>&1 || say "resume of shared, $where: $(cat "$dir/log")"
    "$kumi" ckpt digest "$dir/again" | tail -1 | cmp -s - "$dir/one.digest" || say "resume of shared, $where: digests differ"
done

# 256 ranks on 64 hosts, which are up to 800 processes and threads; 32 on 8 where fewer are allowed
limits() { ulimit -u; cat /sys/fs/cgroup/pids.max "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/pids.max" /sys/fs/cgroup/pids/pids.max; }
allowed=$(limits 2>/dev/null | grep -x '[0-9]*' | sort -n | head -1) hosts=64
if [ "${allowed:-1500}" -lt 1500 ]; then
    hosts=8
    echo "256 ranks are left out: at most $allowed processes and threads are allowed"
fi
tiny=(--set model.n_layer=1 --set model.n_embd=32 --set model.n_head=2 --set data.seq_len=16 --set train.virtual_shards=256 --set train.global_batch=256
    --set checkpoint.every=0)
train many "$(seq -s, -f 'h%g:4' 1 $hosts)" "${tiny[@]}"
train few 1 "${tiny[@]}"
same many few

# refuse CODE WORDS ARGS..: one line with these words
refuse() {
    local code=$1 words=$2
    shift 2
    timeout 120 "$kumi" train "${config[@]}" --out "$dir/refused" "$@" >"$dir/log" 2>&1
    local is=$?
    [ $is = "$code" ] && grep -q -e "$words" "$dir/log" && [ "$(grep -c 'kumi: error' "$dir/log")" = 1 ] || say "$*: exit $is: $(cat "$dir/log")"
    rm -rf "$dir/refused"
}
refuse 2 'not supported on hosts with different numbers of ranks; give private' -H a:2,b:1,c:1 --rsh none "${shared[@]}"
refuse 2 'not supported with parallel.reshard_after_forward 2; give private' -H a:2,b:2 --rsh none --set parallel.zero=3 "${shared[@]}" \
    --set parallel.reshard_after_forward=2
refuse 2 'groups of 2 ranks are neither whole hosts of 3 nor parts of one; give private, or parallel.shard 6, all ranks' -H a:3,b:3 --rsh none \
    --set train.virtual_shards=6 --set train.global_batch=12 --set parallel.zero=1 --set parallel.shard=2 "${shared[@]}"

# kill_held PID: kills it, and keeps it from being reaped for 2 s, as its memory does if it has much
kill_held() {
    python3 - "$1" <<'EOF'
import ctypes, os, signal, sys, time
pid = int(sys.argv[1])
if ctypes.CDLL(None).ptrace(0x4206, pid, None, None): # PTRACE_SEIZE
    print("a process cannot be traced here: a rank that ends slowly is left out")
os.kill(pid, signal.SIGKILL)
time.sleep(2)
EOF
}
# a rank of another host is killed, or stopped
break_rank() { # SIGNAL RANK CODE WORDS OPTIONS..
    local signal=$1 rank=$2 code=$3 words=$4
    shift 4
    timeout 300 "$kumi" train "${config[@]}" -H "${hosts_of:-a:2,b:2}" --rsh none --out "$dir/broken" --set train.steps=1000000 --set checkpoint.every=0 \
        --set parallel.timeout_s=5 "$@" >"$dir/log" 2>&1 &
    local pid=$! victim
    for _ in $(seq 600); do grep -q 'step 1' "$dir/log" && break; sleep 0.1; done
    for _ in $(seq 50); do
        victim=$(pgrep -f -- "--out $dir/broken" | while read -r p; do tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "KUMI_RANK=$rank" && echo "$p"; done | head -1)
        [ -n "$victim" ] && break
        sleep 0.1
    done
    [ -n "$victim" ] || kill "$pid"
    if [ "$signal" = HELD ]; then kill_held "$victim" & else kill "-$signal" "$victim"; fi || say "$signal: rank $rank was not found: $(cat "$dir/log")"
    wait $pid
    local is=$?
    [ $is = "$code" ] && grep -q -e "$words" "$dir/log" && [ "$(grep -c 'kumi: error' "$dir/log")" = 1 ] || say "$signal, rank $rank: exit $is: $(cat "$dir/log")"
    for _ in $(seq 200); do pgrep -f -- "--out $dir/broken" >/dev/null || break; sleep 0.1; done
    pgrep -f -- "--out $dir/broken" >/dev/null && say "$signal: processes are left"
    rm -rf "$dir/broken"
}
break_rank KILL 0 6 'rank died: rank 0 on host a'
break_rank KILL 3 6 'rank died: rank 3 on host b' "${private[@]}"
break_rank KILL 2 6 'rank died: rank 2 on host b' "${shared[@]}"
hosts_of=a:1,b:1 break_rank HELD 1 6 'rank died: rank 1 on host b: killed by signal 9' # not: its connection closed
break_rank STOP 2 7 'time-out: rank 2'
break_rank STOP 3 7 'time-out: rank 3 on host b.*kill -CONT'
exit $failed
