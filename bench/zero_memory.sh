#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The table of docs/reference/sharding.md: what `kumi plan --stages` plans for each stage of ZeRO, and the sum of the ranks' proportional
# set sizes (Pss, /proc/PID/smaps_rollup) behind step 3 of such a run, seen from outside.
#   bench/zero_memory.sh CONFIG RANKS [section.key=value ...]
# Needs memory for stage 0 on all ranks, and data/tinyshakespeare.txt; KUMI=build/kumi. STAGES="0 1 2 3 shared" leaves some out.
set -eu
[ $# -ge 2 ] || { sed -n '3,6s/^# *//p' "$0" >&2; exit 2; }
config=$1 ranks=$2 kumi=${KUMI:-build/kumi}
shift 2
set=()
for one in "$@"; do set+=(--set "$one"); done
dir=$(mktemp -d)
launcher=
stop() { # the launcher takes its ranks with it
    [ -z "$launcher" ] || { kill -KILL "$launcher"; wait "$launcher"; } 2>/dev/null || true
    launcher=
}
trap 'stop; rm -rf "$dir"' EXIT
"$kumi" plan "$config" -n "$ranks" "${set[@]}" --stages --json >"$dir/plan.json"

pss() { # bytes of the launcher's ranks
    local pid sum=0 kib
    for pid in $(ps -o pid= --ppid "$launcher"); do
        kib=$(awk '/^Pss:/ {print $2}' "/proc/$pid/smaps_rollup")
        sum=$((sum + kib * 1024))
    done
    echo "$sum"
}

printf '| stage | planned, all ranks | bytes | measured | of planned |\n|---|--:|--:|--:|--:|\n'
for stage in ${STAGES:-0 1 2 3 shared}; do
    layout=(--set "parallel.zero=$stage" --set parallel.host_state=private) name="zero $stage"
    [ "$stage" != shared ] || { layout=() name=shared; }
    rm -rf "$dir/run"
    "$kumi" train "$config" -n "$ranks" "${set[@]}" "${layout[@]}" --set train.steps=1000 --set train.log_every=1 \
        --set train.eval_every=0 --set checkpoint.every=0 --out "$dir/run" >"$dir/out" 2>"$dir/err" &
    launcher=$!
    until [ "$(grep -c '"step":' "$dir/run/metrics.jsonl" 2>/dev/null || true)" -ge 3 ] 2>/dev/null; do
        kill -0 "$launcher" 2>/dev/null || { cat "$dir/err" >&2; exit 1; }
        sleep 0.2
    done
    held=$(pss)
    stop
    python3 - "$dir/plan.json" "$name" "$held" <<'P'
import json, sys
stages = {s["name"]: s["host_bytes"] for s in json.load(open(sys.argv[1]))["stages"]}
name, held = sys.argv[2], int(sys.argv[3])
planned = stages[name]
print(f"| {name} | {planned / 2**20:,.0f} MiB | {planned:,} | {held / 2**20:,.0f} MiB | {100 * held / planned:.1f} % |", flush=True)
P
done
