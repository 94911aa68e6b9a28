#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi ps: workers and servers as processes have the digests of all-reduce runs; kills; commands; what is refused.
. "$2/tests/cli/begin.sh"
[ -x "$kumi-ps" ] || exit 77
python3 - "$dir" "$2" <<'P'
import json, random, sys
dir, source, r = sys.argv[1], sys.argv[2], random.Random(1)
open(f"{dir}/t.txt", "w").write("".join(r.choice("abcdefgh ") for _ in range(20000)))
with open(f"{dir}/p.en", "w") as en, open(f"{dir}/p.ja", "w", encoding="utf-8") as ja:
    for _ in range(200):
        words = [r.randrange(8) for _ in range(r.randint(1, 6))]
        en.write(" ".join(f"e{w}" for w in words) + "\n")
        ja.write(" ".join(f"日{w * 7 % 31}" for w in words) + "\n")
open(f"{dir}/images.bin", "wb").write(b"".join(bytes([i % 2] + [r.randrange(256) for _ in range(3072)]) for i in range(64)))
train = {"steps": 4, "global_batch": 16, "micro_batch": 2, "virtual_shards": 4, "threads": 1}
gpt2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
base = {"train": train, "parallel": {"timeout_s": 60}}
json.dump(base | {"model": gpt2, "data": {"train": f"{dir}/t.txt", "seq_len": 16}}, open(f"{dir}/c.json", "w"))
resnet = {"model_type": "resnet", "depth": 20, "width": 4}
json.dump(base | {"model": resnet, "data": {"kind": "cifar10", "train": f"{dir}/images.bin"}}, open(f"{dir}/resnet.json", "w"))
pairs = {"model_type": "transformer", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 4, "ffn_dim": 40, "max_positions": 32, "dropout": 0}
data = {"train": f"{dir}/p.en", "train_target": f"{dir}/p.ja", "tokenizer": "word",
        "target_tokenizer": "word", "shapes": 1, "max_source_len": 12, "max_target_len": 12}
json.dump(base | {"model": pairs, "data": data}, open(f"{dir}/pairs.json", "w"))
P
export KUMI_CACHE=$dir/cache
config=c
digest() { sed -n 's/^digest: //p'; }
run() { # folder, option..: prints the digest
    local out=$1
    shift
    timeout 60 "$kumi" ps run "$dir/$config.json" --out "$dir/$out" "$@" 2>"$dir/err" | digest
}
all() { timeout 60 "$kumi" train "$dir/$config.json" --out "$dir/all-$RANDOM$RANDOM" "$@" 2>/dev/null | digest; }
same() { # what, digest, digest
    [ -n "$2" ] && [ "$2" = "$3" ] || { printf '%s: %s, wanted %s\n%s\n' "$1" "$2" "$3" "$(tail -5 "$dir/err")"; failed=1; }
}
no() { # exit code, text, command..
    local code=$1 text=$2 got is
    shift 2
    got=$(timeout 60 "$kumi" ps "$@" 2>&1 >/dev/null)
    is=$?
    [ $is = "$code" ] && [[ $got == *"kumi: error: "*"$text"* ]] || { printf 'kumi ps %s\n  wanted %s: %s\n  got    %s: %s\n' "$*" "$code" "$text" $is "$got"; failed=1; }
}

# sync: models x workers x servers x optimizers, a sample of GPT-2's or all of them
i=0
models=c
[ -n "${KUMI_TEST_ALL:-}" ] && models="c resnet pairs"
for config in $models; do
    for set in "optimizer.type=sgd optimizer.momentum=0.9" "optimizer.type=adamw" "optimizer.type=lamb"; do
        sets=()
        for one in $set; do sets+=(--set "$one"); done
        for n in 1 2 4; do
            for s in 1 2 3; do
                i=$((i + 1))
                [ -n "${KUMI_TEST_ALL:-}" ] || [ $((i % 6)) = 5 ] || continue
                same "$config, $n workers, $s servers, $set" "$(run "m$i" -n $n -s $s "${sets[@]}")" "$(all -n $n "${sets[@]}")"
            done
        done
    done
done
[ -z "${KUMI_TEST_ALL:-}" ] || echo "$i rows of models x workers x servers x optimizers"

for config in resnet pairs; do
    same "$config" "$(run $config -n 2 -s 2)" "$(all -n 2)"
done
config=c

# What is zero is not pushed, and what has not changed is not pulled: rows of an embedding, frozen parameters. Of 4.9 MiB,
# half are the head, which is dense; 2 workers push it 4 to 5 times, and pull everything once and the head 4 times.
traffic() { # MiB pushed, MiB pulled: the most that server 0 may have moved
    sed -n 's/.*server 0 received \(.*\) MiB of gradients and sent \(.*\) MiB of parameters.*/\1 \2/p' "$dir/err" |
        awk -v push="$1" -v pull="$2" '{ print; n++; bad += $1 > push || $2 > pull } END { exit bad || n != 1 }'
}
# The plan knows the rows that 8 samples of 16 tokens cannot reach, of 40,064 with padding, and the copy of the parameters.
plan() { "$kumi" plan "$dir/c.json" --json --set ps.workers=2 --set model.vocab_size=40000 --set model.tie_word_embeddings=false "$@"; }
python3 - "$(plan --set optimizer.type=sgd --set optimizer.weight_decay=0)" "$(plan)" <<'P' || say "plan of rows"
import json, sys
rest, moving = (json.loads(text) for text in sys.argv[1:])
copy = rest["server"]["message_bytes"] - rest["server"]["push_bytes"]
assert rest["worker"]["zero_bytes"] == moving["worker"]["zero_bytes"] == (40064 - 128) * 16 * 4, rest
assert rest["worker"]["pull_bytes"] < copy < 1.05 * rest["worker"]["pull_bytes"] + 65536, rest
assert moving["server"]["message_bytes"] == moving["server"]["push_bytes"], moving
P
for set in "optimizer.type=sgd optimizer.momentum=0" "optimizer.type=adagrad" "train.freeze=[\"wte.*\",\"wpe.*\"]" \
    "optimizer.type=sgd optimizer.momentum=0 ps.mode=async train.steps=8"; do
    i=$((i + 1)) sets=(--set model.vocab_size=40000 --set model.tie_word_embeddings=false --set optimizer.weight_decay=0)
    for one in $set; do sets+=(--set "$one"); done
    got=$(run "rows$i" -n 2 "${sets[@]}")
    grep -q 'killed by signal' "$dir/err" && say "$set: $(grep 'killed by signal' "$dir/err")"
    traffic 26 31 >"$dir/out" || say "$set: MiB $(cat "$dir/out" "$dir/err")"
    [[ $set == *async* ]] || same "$set" "$got" "$(all -n 2 "${sets[@]}")"
done

# a run whose servers were stopped goes on; status and snapshot meanwhile; a drain ends it, as no number of steps is long on every machine
long=(--set train.steps=1000000 --set ps.workers=1)
address=unix:$dir/long/server-0.sock
"$kumi" ps serve "$dir/c.json" --out "$dir/long" "${long[@]}" >"$dir/out" 2>"$dir/err" &
server=$!
"$kumi" ps worker "$dir/c.json" --servers "$address" "${long[@]}" 2>"$dir/worker" &
worker=$!
has_update() { "$kumi" ps status --servers "$address" --json 2>/dev/null | grep -q '"updates": [1-9]'; }
updates() { "$kumi" ps status --servers "$address" --json | sed -n 's/.*"updates": \([0-9]*\).*/\1/p'; }
has_more() { [ "$(updates)" -gt $((before + 4)) ]; }
await has_update || say "no update: $(cat "$dir/err")"
"$kumi" ps snapshot --servers "$address" >"$dir/snapshot" 2>&1 && grep -q '^checkpoint of update [1-9]' "$dir/snapshot" || say "snapshot: $(cat "$dir/snapshot")"
grep -q 'sync, [0-9]* updates, checkpoint [0-9]*, 1 of 1 workers' <("$kumi" ps status --servers "$address" 2>&1) || say "status: $("$kumi" ps status --servers "$address" 2>&1)"
"$kumi" ps status --servers "$address" --json | python3 -c 'import json, sys; x = json.load(sys.stdin); assert x["address"] == sys.argv[1] and x["mode"] == "sync" and x["pushed_bytes"] > 0 and x["dropped"] == 0 and len(x) == 14, x' "$address" || say "status --json"
before=$(updates)
await has_more || say "no update after the snapshot: $(tail -5 "$dir/err")"
kill -KILL $server
wait $server 2>/dev/null
# a record that was being written is cut off; damage before that is an error
cp -r "$dir/long" "$dir/broken"
first=$(ls "$dir"/broken/journal/server-0/*.journal | head -1) last=$(ls "$dir"/long/journal/server-0/*.journal | tail -1)
printf '\377\376\375' | dd of="$first" bs=1 seek=300 conv=notrunc 2>/dev/null
no 3 "journal: $first: damaged at byte " serve "$dir/c.json" --out "$dir/broken" "${long[@]}"
printf 'KPJ1 and no more' >>"$last"
"$kumi" ps serve "$dir/c.json" --out "$dir/long" "${long[@]}" >"$dir/out" 2>"$dir/err" &
server=$!
await has_update || say "no update after a kill: $(cat "$dir/err")"
before=$(updates)
await has_more || say "no update after the recovery: $(tail -5 "$dir/err")"
"$kumi" ps drain --servers "$address" >/dev/null || say "drain after a kill failed"
wait $server
steps=$(sed -n 's/^stopped: \([0-9]*\) step.*/\1/p' "$dir/out")
same "a killed server" "$(digest <"$dir/out")" "$(all "${long[@]}" --set ps.workers=null --until "${steps:-1}")"
wait $worker
is=$?
[ $is = 0 ] || [ $is = 10 ] || say "the worker of a killed server: exit $is: $(cat "$dir/worker")"
grep -q 'repeating updates [0-9]* to [0-9]* from the journal' "$dir/err" || say "no recovery: $(head -3 "$dir/err")"

# drain: exit 10, the state is saved, and the run goes on
"$kumi" ps run "$dir/c.json" --out "$dir/drain" -n 2 -s 2 --set train.steps=100000 >"$dir/out" 2>"$dir/err" &
run=$!
address=unix:$dir/drain/server-0.sock,unix:$dir/drain/server-1.sock
await has_update || say "no update: $(cat "$dir/err")"
"$kumi" ps drain --servers "$address" >/dev/null || say "drain failed"
wait $run
[ $? = 10 ] && grep -q '^stopped: [0-9]* step' "$dir/out" || say "drain: $(cat "$dir/out" "$dir/err")"

# async: the journal repeats the run
got=$(run async -n 2 -s 2 --set ps.mode=async --keep-journal)
same "a replay" "$("$kumi" ps replay "$dir/async" 2>"$dir/err" | digest)" "$got"
# an update has the samples of one worker: an epoch has as many updates for each of them
steps() { sed -n 's/.*"step":1,"epoch":\([0-9.]*\),.*/\1/p' "$dir/$1/metrics.jsonl" | awk '{printf "%.0f\n", 1 / $1}'; }
run whole -n 2 -s 1 --set train.steps=1 >"$dir/out"
[ "$(steps whole)" -gt 0 ] && [ "$(steps async)" = $((2 * $(steps whole))) ] || say "epochs of async: $(steps async) updates, of sync $(steps whole)"

# disk full: pushes are refused, nothing is lost
address=unix:$dir/full/server-0.sock
KUMI_FAULT=write:40 "$kumi" ps serve "$dir/c.json" --out "$dir/full" --set ps.workers=1 >"$dir/out" 2>"$dir/err" &
server=$!
"$kumi" ps worker "$dir/c.json" --servers "$address" --set ps.workers=1 2>"$dir/worker" &
worker=$!
is_full() { "$kumi" ps status --servers "$address" --json 2>/dev/null | grep -q '"refused": [1-9]'; }
await is_full || say "the journal was never full: $(cat "$dir/err")"
kill -KILL $server
wait $server 2>/dev/null
"$kumi" ps serve "$dir/c.json" --out "$dir/full" --set ps.workers=1 >"$dir/out" 2>"$dir/err"
same "a full disk" "$(digest <"$dir/out")" "$(all)"
wait $worker || say "the worker of a server with a full disk: $(cat "$dir/worker")"

# another model, a worker too many, a missing worker
address=unix:$dir/other/server-0.sock
"$kumi" ps serve "$dir/c.json" --out "$dir/other" --set ps.workers=2 >"$dir/out" 2>"$dir/err" &
server=$!
listens() { grep -q '^listening on ' "$dir/out"; }
await listens
no 8 "model or configuration differ from the servers' (layout " worker "$dir/c.json" --servers "$address" --set ps.workers=2 --set model.n_embd=32
no 2 "--worker: 2; the servers have 2 workers, from 0" worker "$dir/c.json" --servers "$address" --set ps.workers=3 --worker 2
no 2 "ps.workers: null; set the number of workers" worker "$dir/c.json" --servers "$address"
kill -TERM $server
wait $server
[ $? = 10 ] || say "a stopped server: $(cat "$dir/err")"
"$kumi" ps serve "$dir/c.json" --out "$dir/missing" --set ps.workers=2 --set parallel.timeout_s=1 >"$dir/out" 2>"$dir/err"
[ $? = 7 ] && grep -q 'kumi: error: ps: worker 0 has not been connected for 1.0 s (parallel.timeout_s), nor have others' "$dir/err" || say "missing workers: $(cat "$dir/err")"
no 2 "--journal-sync: often; give every, none, or group:MS" serve "$dir/c.json" --out "$dir/no" --set ps.workers=1 --journal-sync often
no 2 "ps replay: $dir/all/journal/server-0: no journal with updates" replay "$dir/all"
# a worker that is killed for good: with sync the servers name it at once, and end by their deadline
gone() { # options of all: two workers, of which 1 is killed
    address=unix:$dir/gone/server-0.sock
    rm -rf "$dir/gone"
    "$kumi" ps run "$dir/c.json" --out "$dir/gone" -n 2 --set train.steps=100000 "$@" >"$dir/out" 2>"$dir/err" &
    run=$!
    has_both() { "$kumi" ps status --servers "$address" 2>/dev/null | grep -q '2 of 2 workers'; }
    await has_both || say "no workers: $(cat "$dir/err")"
    kill -KILL "$(pgrep -P $run -f 'worker .*--worker 1')" || say "no worker 1"
}
gone --set parallel.timeout_s=8
wait $run
is=$?
[ $is = 7 ] && grep -q 'worker 1 is away, and the others wait for it; without it' "$dir/err" && grep -q 'ps: worker 1 has not been connected for' "$dir/err" ||
    say "a worker that is gone: exit $is: $(tail -5 "$dir/err")"

# with ssp the others go on, and it can come back
gone --set ps.mode=ssp
tells() { grep -q "$1" "$dir/err"; }
await tells 'worker 1 is away, and the others go on without it' || say "ssp, gone: $(tail -5 "$dir/err")"
before=$(updates)
await has_more || say "no update without worker 1: $(tail -5 "$dir/err")"
"$kumi" ps worker "$dir/c.json" --servers "$address" --worker 1 --set ps.workers=2 --set train.steps=100000 --set ps.mode=ssp 2>"$dir/worker" &
worker=$!
await tells 'worker 1 is back' || say "ssp, back: $(tail -5 "$dir/err"; cat "$dir/worker")"
"$kumi" ps drain --servers "$address" >/dev/null
wait $run
[ $? = 10 ] || say "ssp, drained: $(tail -5 "$dir/err")"
wait $worker

exit $failed
