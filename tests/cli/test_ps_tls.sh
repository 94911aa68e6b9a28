#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi ps over TCP with mutual TLS and a token: a training has the digest of its run over a Unix socket; a client without a certificate or
# without the token is refused.
. "$2/tests/cli/begin.sh"
[ -x "$kumi-ps" ] && command -v openssl >/dev/null || exit 77
python3 - "$dir" <<'P'
import json, random, sys
dir, r = sys.argv[1], random.Random(1)
open(f"{dir}/t.txt", "w").write("".join(r.choice("abcdefgh ") for _ in range(20000)))
gpt2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
json.dump({"model": gpt2, "data": {"train": f"{dir}/t.txt", "seq_len": 16}, "parallel": {"timeout_s": 60},
           "train": {"steps": 6, "global_batch": 16, "micro_batch": 2, "virtual_shards": 4, "threads": 1}, "ps": {"workers": 2}},
          open(f"{dir}/c.json", "w"))
P
certificates() { # everything in $dir, readable by its owner alone
    umask 077
    cd "$dir" || return
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -subj /CN=ca -days 2 -out ca.pem || return
    for name in server client; do
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $name.key -subj /CN=$name -out $name.csr || return
        openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -out $name.pem \
            -extfile <(echo "subjectAltName=IP:127.0.0.1,DNS:localhost") || return
    done
}
(certificates) >"$dir/log" 2>&1 || say "certificates: $(cat "$dir/log")"
want=$("$kumi" train "$dir/c.json" --out "$dir/all" --set ps.workers=null -n 2 2>/dev/null | sed -n 's/^digest: //p')
tls() { echo --cert "$dir/$1.pem" --key "$dir/$1.key" --ca "$dir/ca.pem"; }
token=(--token-file "$dir/token")
(umask 077 && printf '%032d\n' 7 >"$dir/token")
"$kumi" ps serve "$dir/c.json" --out "$dir/run" --listen 127.0.0.1:0 $(tls server) "${token[@]}" >"$dir/out" 2>"$dir/err" &
server=$!
await grep -q "^listening on" "$dir/out" || say "no server: $(cat "$dir/err")"
address=$(sed -n 's/^listening on //p' "$dir/out")
timeout 20 "$kumi" ps status --servers "$address" >"$dir/plain" 2>&1 && say "without TLS: $(cat "$dir/plain")"
timeout 20 "$kumi" ps status --servers "$address" $(tls client) >"$dir/plain" 2>&1 && say "without the token: $(cat "$dir/plain")"
grep -q 'the token is missing or wrong' "$dir/plain" || say "without the token: $(cat "$dir/plain")"
timeout 20 "$kumi" ps status --servers "$address" $(tls client) "${token[@]}" >"$dir/plain" 2>&1 || say "with the token: $(cat "$dir/plain")"
for w in 0 1; do
    "$kumi" ps worker "$dir/c.json" --servers "$address" --worker $w $(tls client) "${token[@]}" 2>"$dir/worker-$w" &
done
wait $server || say "server: exit $?: $(cat "$dir/err")"
got=$(sed -n 's/^digest: //p' "$dir/out")
[ -n "$got" ] && [ "$got" = "$want" ] || say "digest $got, wanted $want"
wait
exit $failed
