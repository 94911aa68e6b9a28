#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Journals of two servers that do not fit together: the next start names what is missing, and does not wait for it.
. "$2/tests/cli/begin.sh"
[ -x "$kumi-ps" ] || exit 77
python3 - "$dir" <<'P'
import json, random, sys
dir, r = sys.argv[1], random.Random(1)
open(f"{dir}/t.txt", "w").write("".join(r.choice("abcdefgh ") for _ in range(20000)))
model = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
train = {"steps": 1000000, "global_batch": 4, "micro_batch": 2, "threads": 1}
json.dump({"model": model, "data": {"train": f"{dir}/t.txt", "seq_len": 16}, "train": train, "ps": {"workers": 2},
           "checkpoint": {"every": 1000000}, "parallel": {"timeout_s": 20}}, open(f"{dir}/c.json", "w"))
P
serve() { # folder, option..: servers 0 and 1
    local out=$1 i
    shift
    for i in 0 1; do
        "$kumi-ps" serve "$dir/c.json" --out "$dir/$out" --shard $i/2 "$@" >"$dir/out$i" 2>"$dir/err$i" &
        server[i]=$!
    done
}
updates() { "$kumi-ps" status --servers "${address%%,*}" --json 2>/dev/null | sed -n 's/.*"updates": \([0-9]*\).*/\1/p'; }
has() { local n; n=$(updates); [ "${n:-0}" -ge "$1" ]; }
begin() { # folder, option..: a run with some updates; its journals after the first ones are in FOLDER.early
    address=unix:$dir/$1/server-0.sock,unix:$dir/$1/server-1.sock
    serve "$@"
    for i in 0 1; do
        "$kumi-ps" worker "$dir/c.json" --servers "$address" --worker $i "${@:2}" 2>"$dir/worker$i" &
        worker[i]=$!
    done
    await has 3 || say "$1: no update: $(cat "$dir/err0")"
    cp -r "$dir/$1/journal" "$dir/$1.early"
    before=$(updates)
    await has $((before + 5)) || say "$1: no more updates: $(cat "$dir/err0")"
}
refused() { # what, text: server 1 ends with code 3 and the text, server 0 with it
    wait "${server[1]}"
    local is=$?
    wait "${server[0]}"
    [ $is = 3 ] && grep -q "kumi: error: .*journal/server-1: .*$2" "$dir/err1" || say "$1: exit $is: $(cat "$dir/err1")"
}

# the disk of server 0 lost the end of its journal: server 1 goes beyond it
for mode in sync async; do
    begin $mode --set ps.mode=$mode
    kill -KILL "${server[@]}" "${worker[@]}"
    wait "${server[@]}" "${worker[@]}" 2>/dev/null
    rm -r "$dir/$mode/journal/server-0"
    cp -r "$dir/$mode.early/server-0" "$dir/$mode/journal/server-0"
    serve $mode --set ps.mode=$mode
    refused "$mode, cut" "but that of server 0 at update [0-9]*: the disk of server 0 lost"
done

# the journal of server 1 alone was moved away: the steps of the workers at the checkpoint are in the other one
begin moved --set ps.mode=async
"$kumi-ps" drain --servers "$address" >/dev/null || say "drain failed"
wait "${server[@]}" "${worker[@]}"
rm -r "$dir/moved/journal/server-1"
serve moved --set ps.mode=async
refused moved "one of the two was moved away"
exit $failed
