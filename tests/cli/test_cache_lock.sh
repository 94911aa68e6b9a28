#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A process holds the lock under which a text is tokenized: a run waits while it advances, ends with 7 when it stands still, and with 10 when it
# is asked to stop. A cache without locks is no error.
. "$2/tests/cli/begin.sh"
command -v flock >/dev/null || exit 77
export KUMI_CACHE=$dir/cache
head -c 20000 data/tinyshakespeare.txt >"$dir/text"
run=(train configs/shakespeare-fast.json --set data.train="$dir/text" --set data.tokenizer=tests/fixtures/tokenizer/small --set model.vocab_size=1024
    --set model.n_layer=1 --set model.n_embd=32 --set train.eval_tokens=64 --set train.global_batch=2 --set train.steps=1 --set train.threads=1)
timeout 60 "$kumi" "${run[@]}" --out "$dir/first" >"$dir/log" 2>&1 || say "a free lock: $(cat "$dir/log")"
lock=$(echo "$dir"/cache/text-*.idx)
exec 9<>"$lock"
flock -x 9

timeout 60 "$kumi" "${run[@]}" -n 2 --out "$dir/still" --set parallel.timeout_s=1 >"$dir/log" 2>&1 9>&-
code=$?
[ $code = 7 ] && [ "$(grep -c '^kumi: error:' "$dir/log")" = 1 ] &&
    grep -qF "data: waiting for another process that reads $dir/text (lock $lock): no progress for 1.0 s (parallel.timeout_s); " "$dir/log" ||
    say "a holder that stands still: exit $code: $(cat "$dir/log")"

for ranks in 1 2; do
    timeout 60 "$kumi" "${run[@]}" -n $ranks --out "$dir/stopped" >"$dir/log" 2>&1 9>&- &
    guard=$!
    await [ -e "$dir/stopped" ] || say "no run: $(cat "$dir/log")"
    kill -TERM "$(pgrep -P $guard -x kumi | head -1)"
    wait $guard
    code=$?
    [ $code = 10 ] && grep -qx "kumi: stopped: signal 15: before the first step; nothing was written into $dir/stopped" "$dir/log" ||
        say "a stop while $ranks wait: exit $code: $(cat "$dir/log")"
    [ -e "$dir/stopped/checkpoints" ] && say "a stop while $ranks wait: $(ls "$dir/stopped")"
    rm -rf "$dir/stopped"
done

timeout 60 "$kumi" "${run[@]}" --out "$dir/moves" --set parallel.timeout_s=1 >"$dir/log" 2>&1 9>&- &
guard=$!
for _ in $(seq 30); do touch "$lock"; sleep 0.05; done
flock -u 9
wait $guard || say "a holder that advances: $(cat "$dir/log")"

# a cache that cannot be written: one warning, whatever the number of files and ranks
for i in 1 2; do cp "$dir/text" "$dir/more$i"; done
KUMI_CACHE=/proc/nowhere timeout 60 "$kumi" "${run[@]}" --set data.train="$dir/more*" -n 2 --out "$dir/none" >"$dir/log" 2>&1 &&
    [ "$(grep -c 'nothing is stored there' "$dir/log")" = 1 ] || say "no cache: $(cat "$dir/log")"
exit $failed
