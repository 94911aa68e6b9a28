#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# KUMI_LOG: levels by subsystem, and one line for a word that is no setting.
. "$2/tests/cli/begin.sh"
train() { # KUMI_LOG more..: standard error into $dir/err
    local log=$1
    shift
    KUMI_LOG=$log "$kumi" train configs/shakespeare-fast.json -n 2 --out "$dir/run" --overwrite --set train.steps=1 \
        --set train.global_batch=2 --set train.eval_tokens=64 --set model.n_layer=1 "$@" 2>"$dir/err" >/dev/null || say "KUMI_LOG=$log: exit $?"
}
n() { grep -cE "$1" "$dir/err"; }

train ''
[ "$(n '^kumi(\[[0-9]\])? [a-z]+ (info|debug):')" = 0 ] || say "messages without KUMI_LOG: $(cat "$dir/err")"
train comm:debug,ckpt:info
[ "$(n '^kumi\[[01]\] comm info: rank [01] of 2 joined')" = 2 ] || say "comm:debug: $(cat "$dir/err")"
[ "$(n '^kumi\[0\] ckpt info: .*: saved, ')" = 1 ] || say "ckpt:info: $(cat "$dir/err")"
[ "$(n ' (exec|data|train|pass) (info|debug):')" = 0 ] || say "comm:debug,ckpt:info: others speak: $(cat "$dir/err")"
train info,comm:warn
[ "$(n ' exec info:')" -gt 0 ] && [ "$(n ' comm info:')" = 0 ] || say "info,comm:warn: $(cat "$dir/err")"
train '*:error,comm:info'
[ "$(n ' comm info:')" = 2 ] && [ "$(n ' exec info:')" = 0 ] || say "*:error,comm:info: $(cat "$dir/err")"

# one line, from one rank; what is right of the rest counts
subsystem='^kumi: KUMI_LOG: cmm:debug: unknown subsystem; one of base comm launch pass exec ckpt data train and \*; write '
level='^kumi: KUMI_LOG: comm:loud: unknown level; one of error warn info debug; write '
train cmm:debug,comm:info
[ "$(n 'KUMI_LOG')" = 1 ] && [ "$(n "$subsystem")" = 1 ] && [ "$(n ' comm info:')" = 2 ] || say "cmm: $(cat "$dir/err")"
train comm:loud
[ "$(n 'KUMI_LOG')" = 1 ] && [ "$(n "$level")" = 1 ] || say "comm:loud: $(cat "$dir/err")"
train cmm:debug --set parallel.transport=thread
[ "$(n 'KUMI_LOG')" = 1 ] && [ "$(n "$subsystem")" = 1 ] || say "cmm with threads: $(cat "$dir/err")"
exit $failed
