# SPDX-License-Identifier: Apache-2.0
# `kumi ps serve`: lines, exit codes, sockets; hostile frames (attack.py); the textbook's client in Python where grpcio is.
. "$2/tests/cli/begin.sh"
[ -x "$(dirname "$kumi")/kumi-ps" ] || { "$kumi" ps serve 2>&1 | grep -q "kumi ps: this build has no parameter server: .* cmake -S . -B build -DKUMI_GRPC=ON && ninja -C build$"; exit $?; }
proto=$source/proto/parameter_server.proto

start() { # OPTIONS: starts a server; pid, and address of its first line
    rm -f "$dir/out" # of the last server
    "$kumi" ps serve --vector "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    await grep -qs "^listening on" "$dir/out" || say "no address: $(cat "$dir/err")"
    address=$(sed -n '1s/^listening on //p' "$dir/out")
}
stop() { # CODE: of the server after SIGTERM
    kill -TERM "$pid"
    wait "$pid"
    [ $? = "$1" ] || say "exit code $?: $(cat "$dir/err")"
}
refused() { # CODE TEXT ARGS..
    local code=$1 text=$2 out
    shift 2
    out=$("$kumi" ps "$@" 2>&1)
    [ $? = "$code" ] || say "ps $*: not exit code $code: $out"
    [ "$(printf '%s\n' "$out" | wc -l)" = 1 ] || say "ps $*: not one line: $out"
    case $out in *"$text"*) ;; *) say "ps $*: $out" ;; esac
}

start 4 --listen "unix:$dir/s,127.0.0.1:0"
[ "$address" = "unix:$dir/s" ] || say "address $address"
[ "$(stat -c %a "$dir/s")" = 600 ] || say "mode $(stat -c %a "$dir/s")"
tcp=$(sed -n '2s/^listening on //p' "$dir/out")
refused 11 "$tcp: in use by pid $pid (kumi-ps)" serve --vector 4 --listen "$tcp"
refused 11 "s: in use by pid $pid (kumi-ps)" serve --vector 4 --listen "unix:$dir/s"
python3 "$source/tests/ps/attack.py" "$tcp" "$pid" >"$dir/attacks" 2>&1 || say "$(tail -5 "$dir/attacks")"
stop 10
grep -q ": /x??\[31mkumi: error: forged?.*: refused: unknown method" "$dir/err" || say "the path of a call: $(grep forged "$dir/err")"
grep -q "stopped by SIGTERM after 0 pushes and [0-9]* pulls" "$dir/err" || say "$(tail -1 "$dir/err")"
[ ! -e "$dir/s" ] || say "the socket file is left"

# A server that was killed leaves its file; the next one takes it.
start 4 --listen "unix:$dir/s"
kill -KILL "$pid"
wait "$pid"
[ -S "$dir/s" ] || say "no socket file after SIGKILL"
start 4 --listen "unix:$dir/s"
kill -INT "$pid" 2>/dev/null
stop 10

# SIGABRT from elsewhere is no bug
ulimit -c 0
start 4 --listen "unix:$dir/s"
kill -ABRT "$pid"
wait "$pid" 2>/dev/null
[ $? = 134 ] || say "SIGABRT: exit code $?"

# a reader that is gone: SIGPIPE ends the commands that are neither servers nor workers
python3 - "$kumi" <<'P' || say "SIGPIPE"
import os, subprocess, sys
for command, code in ([], -13), (["status"], -13), (["run"], 5):
    r, w = os.pipe()
    os.close(r)
    got = subprocess.run([sys.argv[1], "ps", *command, "--help"], stdout=w, stderr=subprocess.DEVNULL, timeout=60)
    assert got.returncode == code, (command, got)
    os.close(w)
P

start 4 --listen 127.0.0.1:0 --max-connections 2 # the third is closed at once
python3 - "$address" <<'P' || say "--max-connections"
import socket, sys
host, port = sys.argv[1].rsplit(":", 1)
held = [socket.create_connection((host, int(port)), 20) for _ in range(3)]
try:
    while held[2].recv(1000):
        pass
except ConnectionResetError:
    pass
P
stop 10

"$kumi" ps bench --quick --service --dir "$dir" --json 2>&1 | python3 -c '
import json, sys
got = json.load(sys.stdin)
assert got["tcp"]["push_p50_us"] and got["service"]["push_p50_us"] and got["service"]["pull_bytes_per_cpu_s"], got' || say "ps bench --json"
[ -z "$(ls -d "$dir"/kumi-ps-bench-* 2>/dev/null)" ] || say "ps bench --service: left $(ls "$dir")"

refused 2 "--vector" serve
refused 2 "--vector: -3; give 1 to" serve --vector -3
refused 2 "--lr" serve --vector 3 --lr x
refused 2 "--lr: nan: not a finite number" serve --vector 3 --lr nan
refused 2 "unknown option" serve --vector 3 --vektor 3
refused 2 "an extra argument" serve --vector 3 x
refused 2 "--dir goes only with --service" bench --dir "$dir"
refused 2 "neither TLS" serve --vector 3 --listen 0.0.0.0:0
refused 2 "the key is missing" serve --vector 3 --cert "$proto"
refused 2 "--threads: 99" serve --vector 3 --threads 99
refused 2 "--max-connections: -1; give 1 to 1048576" serve --vector 3 --max-connections -1
refused 2 "more than 8 addresses" serve --vector 3 --listen a,a,a,a,a,a,a,a,a
refused 2 "--out: a,b: the servers' sockets are in this directory" run configs/shakespeare-fast.json -n 1 --out a,b
refused 2 "ps serf: unknown; did you mean ps serve" serf

for package in "" some.package; do
    start 10000 --optimizer sgd --lr 0.01 --listen 127.0.0.1:0 ${package:+--package "$package"}
    "${KUMI_TEST_PYTHON:-python3}" "$source/tests/ps/client.py" "$proto" "$address" $package >"$dir/client" 2>&1
    code=$?
    stop 10
    [ $code = 77 ] && echo "grpcio is not installed: no client in Python" && break
    [ $code = 0 ] || say "$(cat "$dir/client")"
    grep -q "^10000 10000 -0.0010000000474974513$" "$dir/client" || say "$(cat "$dir/client")"
done
exit $failed
