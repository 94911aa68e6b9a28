#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi info --hosts on hosts that this machine pretends to be: text and JSON, many hosts, one host, a rank that dies, options that are refused.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
info() { # expected code, args..; stdout in $dir/out, stderr in $dir/err
    local expected=$1 code
    shift
    timeout 240 "$kumi" info "$@" >"$dir/out" 2>"$dir/err" </dev/null
    code=$?
    [ $code = "$expected" ] || say "kumi info $*: exit code $code, not $expected: $(cat "$dir/out" "$dir/err")"
}
has() { grep -qE -- "$1" "$dir/${2:-out}" || say "no \"$1\" in: $(cat "$dir/${2:-out}")"; }

info 0 --hosts -H a:2,b:1 --rsh none
[ -s "$dir/err" ] && say "messages: $(cat "$dir/err")"
has '^job         3 ranks on 2 hosts, started by kumi$'
has '^transport   tcp over lo 127\.0\.0\.1$'
has '^   0  a  .* 2  [a-z0-9]+ +[0-9]+ .*iB .*iB$'
has '^   1  b  .* 1  [a-z0-9]+ +[0-9]+ .*iB .*iB$'
has '^all_reduce of 8 bytes over 3 ranks: [0-9.]+ us \(median of [0-9]+\)$'
has '^all_reduce of .*iB over 3 ranks: [0-9.]+ ms, [-+e0-9.]+ GB/s \(median of [1-5]\)$'
has '^   1  b +[0-9.]+ us +[-+e0-9.]+ GB/s'

json() { # hosts, ranks, pairs
    python3 - "$dir/out" "$@" <<'P' || say "JSON: $(head -c 3000 "$dir/out")"
import json, sys
hosts, ranks, pairs = map(int, sys.argv[2:])
o = json.load(open(sys.argv[1]))
assert o["ranks"] == ranks and len(o["hosts"]) == hosts
first = 0
for host in o["hosts"]:
    assert host["first_rank"] == first and host["cores"] >= 1 and host["memory_bytes"] > 1 << 20 and host["isa"]
    assert hosts == 1 or (host["name"] and host["address"])
    first += host["ranks"]
assert first == ranks
assert len(o["all_reduce"]) == (2 if hosts > 1 else 0) and 1 <= len(o["round_trip"]) + (hosts == 1) and len(o["round_trip"]) <= pairs
if hosts > 1:
    assert o["transport"].startswith(("tcp", "mpi", "chaos"))
    assert o["all_reduce"][0]["bytes"] == 8 and 1 << 16 <= o["all_reduce"][1]["bytes"] <= 1 << 24
for t in o["all_reduce"] + [p[k] for p in o["round_trip"] for k in ("small", "large")]:
    assert t["median_us"] > 0 and t["samples"] >= 1 and t["gbps"] > 0
names = [p["host"] for p in o["round_trip"]]
assert names == sorted(set(names)) and all(0 < h < hosts for h in names)
P
}
info 0 --hosts -H a:2,b:2 --rsh none --json
json 2 4 1
info 0 --hosts -H a:2,b:2 -n 3 --rsh none --json
json 2 3 1
printf 'a slots=1\nb slots=1\n' >"$dir/hostfile"
info 0 --hosts --hostfile "$dir/hostfile" --rsh none --json
json 2 2 1
info 0 --hosts -H "$(seq -s, -f 'h%g:1' 0 17)" --rsh none --json # 17 others: one is left out
json 18 18 16
info 0 --hosts -H "$(seq -s, -f 'h%g:1' 1 34)" --rsh none
has 'over 34 hosts$'
has '^ranks +1 +1 +1$'
has '^isa  .* on 34$'
has '^min of [0-9]+ hosts? +[0-9.]+ us'
[ "$(wc -l <"$dir/out")" -lt 20 ] || say "34 hosts: $(cat "$dir/out")"

# hosts without KUMI_HOST on one machine, as containers and network namespaces are: their ranks count together where they share cores
nodes() { # N WORDS CPUS..: each rank says so; rank r may run on the r-th of CPUS, counted around
    local n=$1 words=$2 port=$((20000 + RANDOM % 10000)) r pids=()
    shift 2
    for r in $(seq 0 $((n - 1))); do
        RANK=$r WORLD_SIZE=$n LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=$r GROUP_WORLD_SIZE=$n KUMI_THREADS=1 KUMI_LOG=info KUMI_RENDEZVOUS=127.0.0.1:$port+16 \
            KUMI_SECRET=$(printf '%064d' 7) timeout 240 taskset -c "${@:1 + r % $#:1}" "$kumi" info --hosts >"$dir/out$r" 2>&1 &
        pids+=($!)
    done
    wait "${pids[@]}" || say "$n nodes: $(cat "$dir"/out?)"
    [ "$(cat "$dir"/out? | grep -cE "comm info: rank [0-9] of $n joined \(started by .*, transport shm, tcp over lo 127\.0\.0\.1; waits $words\)\$")" = "$n" ] ||
        say "$n nodes, not \"$words\": $(cat "$dir"/out? | grep comm.info)"
    rm -f "$dir"/out?
}
own=($(taskset -cp $$ | sed 's/.*: //; s/,/ /g' | xargs -n1 | awk -F- '{for (i = $1; i <= ($2 ? $2 : $1); i++) print i}'))
nodes 2 'sleep: 2 ranks x 1 thread on 1 core' "${own[0]}"
if [ "${#own[@]}" -gt 1 ]; then
    nodes 2 'spin: 1 rank x 1 thread on 1 core' "${own[0]}" "${own[1]}"
    nodes 3 'sleep: 3 ranks x 1 thread on 2 cores' "${own[0]},${own[1]}"
fi

# one host
info 0 --hosts
has '^job         1 rank on 1 host$'
has '^One host: there is no network to measure'
info 0 --hosts -n 2 --json
json 1 2 0

# a slow network gets fewer bytes
KUMI_CHAOS=delay=2ms,short=1000 info 0 --hosts -H a:1,b:1 --rsh none --json
json 2 2 1

# a rank dies: one error, which names it
KUMI_CHAOS=kill=1@9 info 6 --hosts -H a:1,b:1 --rsh none
has 'rank died: rank 1 on host b' err
[ -s "$dir/out" ] && say "a report: $(cat "$dir/out")"

info 2 -n 2
has '^kumi: error: kumi info: -n goes only with --hosts$' err
info 2 -H a:1
has '-H goes only with --hosts$' err
info 2 --hosts --rsh none
has '--rsh goes only with -H or --hostfile$' err
info 2 --hosts -H a:0 --rsh none
exit $failed
