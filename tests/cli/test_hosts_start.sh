#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What several hosts refuse at the start, in one line for the job.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
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
# the environment is that of all hosts, which would all say it
KUMI_INTERFACE=none0 refuse 2 'KUMI_INTERFACE: none0: host [abc] has' -H a:2,b:2,c:1 --rsh none
refuse 13 'memory: plan of 2 ranks on host [ab]: ' -H a:2,b:2 --rsh none --set model.n_layer=100 --set model.n_embd=32768 --set model.n_head=256

KUMI_THREADS=x refuse 2 'KUMI_THREADS: x; give a number from 1 to 4096' -H a:1,b:1 --rsh none
KUMI_PIN=2 refuse 2 'KUMI_PIN: 2; give 0 or 1' -H a:1,b:1 --rsh none
said=$(KUMI_THREADS=3 timeout 60 "$kumi" run -H a:1,b:2 --rsh none -- sh -c 'echo $KUMI_THREADS' 2>"$dir/log" | sort | uniq -c)
[ "${said// /}" = 33 ] || say "KUMI_THREADS=3 on hosts: $said $(cat "$dir/log")"

refuse 2 'launch: 1025 hosts; agents are started on at most 1024; start a larger job with srun or mpirun' -H "$(seq -s, -f h%g 1025)" --rsh none

# no rank can open its communicators: one of them says so
unset OMPI_COMM_WORLD_SIZE PMIX_RANK PMI_RANK PMI_FD PMI_PORT KUMI_MPI
for _ in 1 2 3; do refuse 2 'mpi: no MPI launcher started this rank' -H a:2,b:2,c:1 --rsh none --set parallel.transport=mpi; done

refuse 2 'transport: shm: for the ranks of one host, but these are on 2; give auto, tcp or mpi' -H a:2,b:2 --rsh none --set parallel.transport=shm

# hosts that differ: one line with both values. apart WORDS COMMAND: each rank runs the shell command before `kumi train ..`
apart() {
    local words=$1 before=$2
    shift 2
    timeout 120 "$kumi" run -H a:2,b:2 --rsh none -- sh -c "$before"'; exec "$@" $more' sh "$kumi" train "${config[@]}" --out "$dir/refused" "$@" >"$dir/log" 2>&1
    local is=$?
    [ $is = "$code" ] && grep -q -e "ranks\? differ: $words\|parallel.isa: $words" "$dir/log" && [ "$(grep -c 'kumi: error' "$dir/log")" = 1 ] || say "$before: exit $is: $(cat "$dir/log")"
    rm -rf "$dir/refused"
}
code=2
apart 'configuration: train.seed (rank 0 on host a: 1337, rank 2 on host b: 7); start every rank' '[ $KUMI_HOST = a ] || more="--set train.seed=7"'
apart 'configuration: model.n_layer (rank 0 on host a: 1, rank 1 on host a: 2), optimizer.lr (.*: 0.004, .*: 1.5); start every rank' '[ $RANK != 1 ] || more="--set optimizer.lr=1.5 --set model.n_layer=2"'
mkdir "$dir/a" "$dir/b" && cp "$dir/text" "$dir/a/mine" && tail -c 9000 "$dir/text" >"$dir/b/mine"
apart 'data: rank 0 on host a has [0-9a-f]*, rank 2 on host b has [0-9a-f]*; give every host the same files' 'cd "'"$dir"'/$KUMI_HOST"' --set data.train=mine
code=14 # without the upper sets of a CPU that has them
"$kumi" info --json | grep -q '"isa": *"base"' || {
    apart '[a-z0-9]*, but the CPU of rank 2 on host b has base at best; set parallel.isa=base' '[ $KUMI_HOST = a ] || export KUMI_CPU_ISA=base' --set parallel.isa=avx2
    apart '[a-z0-9]* is the choice of rank 0 on host a, but the CPU of rank 2 on host b has base at best; set parallel.isa=base' '[ $KUMI_HOST = a ] || export KUMI_CPU_ISA=base'
    timeout 120 "$kumi" run -H a:2,b:2 --rsh none -- sh -c '[ $KUMI_HOST = a ] || export KUMI_CPU_ISA=base; exec "$@"' sh "$kumi" train "${config[@]}" --set parallel.isa=base \
        --out "$dir/base" >"$dir/log" 2>&1 || say "parallel.isa=base: $(cat "$dir/log")"
}

# A relative --out that is another directory on some hosts: ranks as another launcher starts them, one per host, each in a folder of its own.
secret=$(printf '%064d' 7)
await_ranks() { # PID..: their codes in $codes, what they printed in $dir/log
    local pid
    codes=''
    for pid; do
        wait "$pid"
        codes+="$? "
    done
    cat "$dir"/log[0-9]* >"$dir/log"
}
blind() { # HOSTS NAMED..: host 0 has the run directory, no other has
    local n=$1 rank pids=() port=$((20000 + RANDOM % 10000))
    for rank in $(seq 0 $((n - 1))); do
        rm -rf "$dir/at$rank" && mkdir -p "$dir/at$rank"
        (cd "$dir/at$rank" && RANK=$rank WORLD_SIZE=$n LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            KUMI_RENDEZVOUS=127.0.0.1:$port+16 KUMI_HOST=h$rank KUMI_SECRET=$secret exec timeout 120 "$kumi" train "${config[@]}" \
            --out run/x "${more[@]}") >"$dir/log$rank" 2>&1 &
        pids+=($!)
    done
    await_ranks "${pids[@]}"
    [ "$codes" = "$(printf '2 %.0s' $(seq "$n"))" ] && [ "$(grep -c 'kumi: error' "$dir/log")" = 1 ] &&
        grep -qF "run directory: run/x: $2; give a path on a file system that all hosts share" "$dir/log" || say "blind $n: exit $codes: $(cat "$dir/log")"
    [ ! -e "$dir/at0/run/x" ] || say "blind $n: left: $(ls -A "$dir/at0/run/x")"
    rm -f "$dir"/log[0-9]*
}
more=()
blind 2 '1 of the 2 hosts cannot see it: h1'
more=(--set parallel.timeout_s=1.7) # less than the 2 s of the check, and time for seven processes to start
blind 7 '6 of the 7 hosts cannot see it: h1, h2, h3, h4 and 2 more'

# rank 0 started twice: both say so, whichever has the first port
port=$((20000 + RANDOM % 10000))
place=(RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "KUMI_RENDEZVOUS=127.0.0.1:$port+2" "KUMI_SECRET=$secret")
env "${place[@]}" KUMI_HOST=a timeout 60 "$kumi" train "${config[@]}" --out "$dir/twice" >"$dir/log0" 2>&1 &
env "${place[@]}" KUMI_HOST=b timeout 60 "$kumi" train "${config[@]}" --out "$dir/twice" >"$dir/log1" 2>&1
codes=$?
wait $!
codes+=" $?"
[ "$codes" = '2 2' ] && [ "$(cat "$dir/log0" "$dir/log1" | grep -c '^kumi: error: join: hosts \(a and b\|b and a\) both have rank 0; start every rank once')" = 2 ] ||
    say "rank 0 twice: exit $codes: $(cat "$dir/log0" "$dir/log1")"
# Ranks that are not numbered host by host, and a rank that is started twice on its host: all ranks of the job say so long before parallel.timeout_s.
# wrong WORDS "RANK LOCAL_RANK LOCAL_WORLD_SIZE HOST".. of a job of 3 ranks
wrong() {
    local words=$1 row rank local n host pids=() said
    shift
    rm -f "$dir"/log[0-9]*
    port=$((20000 + RANDOM % 10000))
    for row in "$@"; do
        read -r rank local n host <<<"$row"
        RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$local LOCAL_WORLD_SIZE=$n KUMI_HOST=$host KUMI_SECRET=$secret KUMI_RENDEZVOUS=127.0.0.1:$port+2 \
            timeout 120 "$kumi" train "${config[@]}" --set parallel.timeout_s=600 --out "$dir/wrong" >"$dir/log$rank$local${#pids[@]}" 2>&1 &
        pids+=($!)
    done
    await_ranks "${pids[@]}"
    said=$(grep -c "$words" "$dir/log")
    [ "$codes" = '2 2 2 ' ] && [ "$said" -ge 2 ] && [ "$(grep -c 'kumi: error' "$dir/log")" = "$said" ] || say "wrong ${*@Q}: exit $codes: $(cat "$dir/log")"
    rm -f "$dir"/log[0-9]*
}
cyclic="join: rank 2 is local rank 1 on the host of rank 0; ranks are numbered host by host: RANK is the host's first rank + LOCAL_RANK"
wrong "$cyclic" '0 0 2 a' '2 1 2 a' '1 0 1 b'
twice='join: rank [01] of 3 was started twice: processes [0-9]* and [0-9]*; start every rank once\|a rank of this host started twice'
wrong "$twice" '0 0 2 a' '0 0 2 a' '2 0 1 b'
wrong "$twice" '0 0 1 a' '1 0 2 b' '1 0 2 b'
# a port on which another process listens: its id and name
python3 -c "
import socket, time
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
time.sleep(60)" >"$dir/port" &
listener=$!
await test -s "$dir/port"
env "${place[@]}" "KUMI_RENDEZVOUS=127.0.0.1:$(cat "$dir/port")" KUMI_HOST=a timeout 60 "$kumi" train "${config[@]}" --out "$dir/twice" >"$dir/log0" 2>&1
[ $? = 2 ] && grep -q "^kumi: error: join: listening on port $(cat "$dir/port"): Address already in use by process $listener (python3" "$dir/log0" || say "port taken: $(cat "$dir/log0")"
kill $listener
# what a killed run left is removed, and the file of this check too
mkdir -p "$dir/run" && : >"$dir/run/.kumi-hosts-0123456789abcdef"
timeout 120 "$kumi" train "${config[@]}" -H a:1,b:1 --rsh none --out "$dir/run" >"$dir/log" 2>&1 || say "a:1,b:1: $(cat "$dir/log")"
ls -A "$dir/run" | grep -q hosts && say "left: $(ls -A "$dir/run")"
exit $failed
