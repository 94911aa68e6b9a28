#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every parser: fuzz.sh SECONDS [TARGET]..
#
# Each target of tests/fuzz (fuzz_<TARGET>.c) runs for so many seconds under AddressSanitizer, as many at a time as
# there are processors, from its corpus and what earlier calls found (BUILD/fuzz/TARGET). Exit code 1: an input
# failed; it is named and stays there. To keep what was found, a small file for each new edge:
# BUILD/tests/fuzz/fuzz_TARGET -merge=1 -use_counters=0 -max_len=4096 tests/fuzz/corpus/TARGET BUILD/fuzz/TARGET
#
#   RUNS    inputs for each target at most, in at most so many seconds (default: no limit)
#   BUILD   build folder of clang with KUMI_FUZZ (default: build-fuzz, made by its preset where it is missing; with
#           UBSan, in three times the time: cmake --preset fuzz -DKUMI_SANITIZE=address,undefined)
#   JOBS    targets at a time
set -u
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build-fuzz} jobs=${JOBS:-$(nproc)} seconds=${1:-}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: tools/fuzz.sh SECONDS [TARGET].." >&2; exit 2; }
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for file in tests/fuzz/fuzz_*.c; do name=${file##*/fuzz_}; targets+=("${name%.c}"); done
for target in "${targets[@]}"; do [ -f "tests/fuzz/fuzz_$target.c" ] || { echo "fuzz: $target: no such target" >&2; exit 2; }; done
[ -f "$build/build.ninja" ] || cmake --preset fuzz -B "$build" >"$build.log" 2>&1 || { cat "$build.log"; exit 2; }
ninja -C "$build" -j "$(nproc)" --quiet "${targets[@]/#/fuzz_}" || exit 2

fuzz() { # target
    local found=$build/fuzz/$1
    mkdir -p "$found"
    if "$build/tests/fuzz/fuzz_$1" -max_total_time="$seconds" -runs="${RUNS:--1}" -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$found/failed-" "$found" "tests/fuzz/corpus/$1" >"$build/fuzz/$1.log" 2>&1; then
        sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz/$1.log" | sed "s/^/$1: inputs: /"
    else
        tail -40 "$build/fuzz/$1.log"
        echo "$1: failed; its input: $(ls "$found"/failed-* 2>/dev/null | tail -1)"
        return 1
    fi
}
status=0
for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || status=1; done
    fuzz "$target" &
done
for job in $(jobs -p); do wait "$job" || status=1; done
exit $status
