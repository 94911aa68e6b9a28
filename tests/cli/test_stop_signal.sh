#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SIGUSR1, which batch systems send ahead of a time limit, stops a run as SIGTERM does: to the launcher of one host or of several, and to a rank
# that another launcher started.
. "$2/tests/cli/begin.sh"
export KUMI_CACHE=$dir/cache
head -c 20000 docs/internals/numerics.md >"$dir/text" # any text
config=(configs/shakespeare-fast.json --set "data.train=$dir/text" --set data.val_fraction=0.1 --set model.n_layer=1 --set model.n_embd=32
    --set model.n_head=2 --set train.threads=1 --set train.virtual_shards=8 --set train.micro_batch=1 --set train.global_batch=8
    --set train.steps=100000000 --set train.eval_tokens=16 --set data.seq_len=16 --set checkpoint.every=0 --set train.eval_every=0)
await() { # LOG PID
    for _ in $(seq 600); do
        grep -qs 'step 1/' "$1" && return
        kill -0 "$2" 2>/dev/null || break
        sleep 0.1
    done
    say "no step: $(cat "$1")"
    exit 1
}
is_stopped() { # CODE NAME: exit code 10, one line, a checkpoint that verifies
    [ "$1" = 10 ] && [ "$(grep -c 'kumi: stopped: signal 10: step ' "$dir/log")" = 1 ] && ! grep -q 'kumi: error' "$dir/log" ||
        say "$2: exit $1: $(cat "$dir/log")"
    "$kumi" ckpt verify "$dir/run" >"$dir/verify" 2>&1 || say "$2: $(cat "$dir/verify")"
    rm -rf "$dir/run"
}
for where in '-n 1' '-n 2' '-H a:2,b:2 --rsh none'; do
    rm -f "$dir/log" # of the last run
    # shellcheck disable=SC2086
    timeout 120 "$kumi" train "${config[@]}" $where --out "$dir/run" >"$dir/log" 2>&1 &
    guard=$!
    await "$dir/log" $guard
    kill -USR1 "$(pgrep -P $guard -x kumi | head -1)"
    wait $guard
    is_stopped $? "$where"
done

# SIGTERM at the limit, while the state that SIGUSR1 asked for is not saved yet: a rank is stopped meanwhile. Only a second SIGTERM ends the run.
for where in '-n 2' '-H a:2,b:2 --rsh none'; do
    for signals in 'USR1 TERM' 'USR1 TERM TERM'; do
        rm -f "$dir/log"
        # shellcheck disable=SC2086
        timeout 120 "$kumi" train "${config[@]}" $where --out "$dir/run" >"$dir/log" 2>&1 &
        guard=$!
        await "$dir/log" $guard
        launcher=$(pgrep -P $guard -x kumi | head -1)
        slow=$(pgrep -f -- "--out $dir/run" | while read -r p; do tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx KUMI_RANK=1 && echo "$p"; done | head -1)
        kill -STOP "$slow" || say "rank 1 was not found: $(cat "$dir/log")"
        for signal in USR1 TERM; do
            kill -$signal "$launcher"
            sleep 1.1
        done
        # the launcher counts the second from when it read the first SIGTERM, so until one counts
        [ "$signals" = 'USR1 TERM' ] || for _ in $(seq 30); do kill -TERM "$launcher" 2>/dev/null || break; sleep 1.2; done
        kill -CONT "$slow" 2>/dev/null
        wait $guard
        code=$?
        if [ "$signals" = 'USR1 TERM TERM' ]; then
            [ $code = 143 ] && grep -q 'kumi: error: stopped: a second signal 15' "$dir/log" || say "$signals, $where: exit $code: $(cat "$dir/log")"
            rm -rf "$dir/run"
        else
            is_stopped $code "$signals, $where"
        fi
    done
done

# one rank of two hosts gets it
port=$((20000 + RANDOM % 10000)) pids=()
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port KUMI_RENDEZVOUS=127.0.0.1:$port+16 \
        KUMI_HOST=h$rank KUMI_SECRET=$(printf '%064d' 7) timeout 120 "$kumi" train "${config[@]}" --out "$dir/run" >"$dir/log$rank" 2>&1 &
    pids+=($!)
done
await "$dir/log0" "${pids[0]}"
ranks=("$(pgrep -P "${pids[0]}" -x kumi)" "$(pgrep -P "${pids[1]}" -x kumi)")
kill -STOP "${ranks[0]}"
kill -USR1 "${ranks[1]}"
sleep 1.1
kill -TERM "${ranks[@]}" # as Slurm at the limit
sleep 0.1
kill -CONT "${ranks[0]}"
wait "${pids[0]}"
first=$?
wait "${pids[1]}"
second=$?
[ $second = 10 ] || say "rank 1: exit $second: $(cat "$dir/log1")"
cat "$dir/log0" "$dir/log1" >"$dir/log"
sed -i 's/stopped: signal 15: step/stopped: signal 10: step/' "$dir/log" # of the rank that was stopped
is_stopped $first 'a rank'

# a program of kumi run gets it
"$kumi" run -n 2 -- bash -c 'trap "exit 10" USR1; : >"$1/ready$RANK"; while :; do sleep 0.05; done' bash "$dir" 2>"$dir/err" &
pid=$!
for _ in $(seq 600); do [ -e "$dir/ready0" ] && [ -e "$dir/ready1" ] && break; sleep 0.1; done
kill -USR1 $pid
wait $pid
code=$?
[ $code = 10 ] || say "kumi run: exit $code: $(cat "$dir/err")"
# and SIGTERM after it, which it does not catch
"$kumi" run -H a:1,b:1 --rsh none -- bash -c 'trap : USR1; : >"$1/up$RANK"; while :; do sleep 0.05; done' bash "$dir" 2>"$dir/err" &
pid=$!
for _ in $(seq 600); do [ -e "$dir/up0" ] && [ -e "$dir/up1" ] && break; sleep 0.1; done
kill -USR1 $pid && sleep 1.1 && kill -TERM $pid
wait $pid
code=$?
[ $code = 10 ] && ! grep -q error "$dir/err" || say "kumi run, SIGTERM after SIGUSR1: exit $code: $(cat "$dir/err")"
exit $failed
