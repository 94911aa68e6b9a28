#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The start of kumi ps serve and run: what is refused, before anything is made; directories, addresses and hosts; a run without workers.
. "$2/tests/cli/begin.sh"
[ -x "$kumi-ps" ] || exit 77
python3 - "$dir" <<'P'
import json, random, sys
dir, r = sys.argv[1], random.Random(1)
open(f"{dir}/t.txt", "w").write("".join(r.choice("abcdefgh ") for _ in range(20000)))
gpt2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
json.dump({"model": gpt2, "data": {"train": f"{dir}/t.txt", "seq_len": 16}, "parallel": {"timeout_s": 60},
           "train": {"steps": 4, "global_batch": 16, "micro_batch": 2, "virtual_shards": 4, "threads": 1}}, open(f"{dir}/c.json", "w"))
open(f"{dir}/broken.json", "w").write('{"model"')
P
cd "$dir" || exit 1
no() { # exit code, text, command..: one line, and no folder is left
    local code=$1 text=$2 got is
    shift 2
    got=$(timeout 60 "$kumi" ps "$@" 2>&1 >/dev/null)
    is=$?
    [ $is = "$code" ] && [[ $got == "kumi: error: "*"$text"* ]] && [ "$(printf '%s\n' "$got" | wc -l)" = 1 ] && [ ! -e o ] && [ ! -e runs ] && return
    printf 'kumi ps %s\n  wanted %s: %s\n  got    %s: %s\n  in %s\n' "$*" "$code" "$text" $is "$got" "$(echo *)"
    rm -rf o runs
    failed=1
}

# a configuration that cannot be read, once and by its cause
for command in "serve" "run -n 2 -s 2"; do
    no 2 "json: nosuch.json: cannot be read: No such file or directory" $command nosuch.json --out o
    no 2 "json: broken.json:1:8: " $command broken.json --out o
    no 2 "ps.modus: unknown key; see" $command c.json --out o --set ps.modus=async
done
no 2 "ps.workers: null; set the number of workers" serve c.json --out o

# addresses, secrets and the length of the directory, before data are read
no 2 "0.0.0.0:7777: not on this host, and neither TLS" serve c.json --out o --set ps.workers=1 --listen 0.0.0.0:7777
no 2 "no port of 0 to 65535" serve c.json --out o --set ps.workers=1 --listen here
no 2 "rpc: token: none: No such file or directory" serve c.json --out o --set ps.workers=1 --token-file none
no 2 "rpc: tls: the key is missing" serve c.json --out o --set ps.workers=1 --cert c.json
no 2 "--out: give the run directory, the same for all shards" serve c.json --set ps.workers=1 --shard 0/2
long=$(printf '%096d' 0)
no 2 "96 bytes; the servers' sockets are in this directory, and the path of a socket is short: give one of at most 93" run c.json -n 2 --out "$long"

# runs/CONFIG-TIME by default, which does not stay if no run has begun; every address is printed
timeout 60 "$kumi" ps run c.json -n 1 --set data.train=t.none 2>err
[ $? = 3 ] && grep -q '^kumi: error: data: t.none: No such file or directory' err && rmdir runs || say "no data: $(cat err; ls runs)"
digest() { sed -n 's/^digest: //p'; }
want=$("$kumi" train c.json --out all -n 2 2>/dev/null | digest)
got=$(timeout 60 "$kumi" ps run c.json -n 2 2>err | digest)
[ -n "$got" ] && [ "$got" = "$want" ] && [ -e runs/c-*/summary.json ] || say "a run without --out: $got, wanted $want: $(cat err; ls runs)"
rm -rf runs
"$kumi" ps serve c.json --set ps.workers=2 --listen "unix:$dir/socket,127.0.0.1:0" >out 2>err &
server=$!
has_two() { [ "$(grep -c '^listening on ' out)" = 2 ]; }
await has_two || say "addresses: $(cat out err)"
got=$("$kumi" ps status --servers "unix:none,unix:$dir/socket" 2>err-status)
is=$?
[ $is = 6 ] && [[ $got == "server 0 of 1 at unix:$dir/socket: "* ]] && grep -q '^kumi: error: .*unix:none' err-status || say "status with a server that is down: exit $is: $got $(cat err-status)"
i=0
for address in $(sed -n 's/^listening on //p' out); do
    timeout 60 "$kumi" ps worker c.json --set ps.workers=2 --worker $i --servers "$address" 2>"worker-$i" || say "worker $i: $(cat "worker-$i")" &
    i=$((i + 1))
done
wait $server
grep -q 'server 0 received [0-9.]* KiB of gradients and sent [0-9.]* KiB of parameters' err || say "traffic: $(cat err)"
got=$(digest <out)
[ "$got" = "$want" ] && [ -e runs/c-*/summary.json ] || say "a server without --out: $got, wanted $want: $(cat out err worker-*)"
wait

# servers and workers as jobs of kumi run on two hosts: server I adds I to the port, a worker has the number of its rank
port=$(python3 -c '
import socket
while True:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        try:
            b.bind(("127.0.0.1", a.getsockname()[1] + 1))
        except OSError:
            continue
        print(a.getsockname()[1])
        break')
hosts() { timeout 60 "$kumi" run -H h0:1,h1:1 --rsh none -- "$kumi-ps" "$@" --set ps.workers=2; }
hosts serve c.json --out hosts --listen "127.0.0.1:$port" >out 2>err &
server=$!
hosts worker c.json --servers "127.0.0.1:$port,127.0.0.1:$((port + 1))" >workers 2>&1 || say "workers on two hosts: $(cat workers)"
wait $server
is=$?
[ $is = 0 ] && [ "$(digest <out)" = "$want" ] || say "servers on two hosts: exit $is, wanted $want: $(cat out err)"

# no worker is left: the state is saved, and the code is that of the first worker
"$kumi" ps run c.json -n 1 --out o --set train.steps=1000000 >out 2>err &
run=$!
has_update() { "$kumi" ps status --servers unix:o/server-0.sock --json 2>/dev/null | grep -q '"updates": [1-9]'; }
await has_update || say "no update: $(cat err)"
kill -KILL "$(pgrep -P $run -f 'worker .*--worker 0')" || say "no worker"
wait $run
is=$?
[ $is = 6 ] && grep -q '^kumi: no worker is left; the servers are stopped' err && grep -q '^stopped: [1-9]' out || say "no worker: exit $is: $(cat out err)"

exit $failed
