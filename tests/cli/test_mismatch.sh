#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/mismatch: ranks that call different collectives end with code 8 and one line that names both sides.
set -u
kumi=$1/kumi mismatch=$1/examples/mismatch failed=0
[ -x "$kumi" ] && [ -x "$mismatch" ] || exit 77
expect() { # ranks argument side side
    local err code
    err=$(timeout 60 "$kumi" run -n "$1" -- "$mismatch" "$2" 2>&1 >/dev/null)
    code=$?
    if [ $code != 8 ] || [ "$(printf '%s\n' "$err" | wc -l)" != 1 ] || ! [[ $err == "kumi: error: mismatched collectives: "* ]] ||
        ! [[ $err == *"$3"* ]] || ! [[ $err == *"$4"* ]]; then
        printf 'mismatch %s on %s ranks: wanted 8 and one line with "%s" and "%s", got %s: %s\n' "$2" "$1" "$3" "$4" $code "$err"
        failed=1
    fi
}
expect 2 counts 'all_reduce(f32 x 1000, sum)' 'all_reduce(f32 x 999, sum)'
expect 4 counts 'all_reduce(f32 x 1000, sum)' 'all_reduce(f32 x 999, sum)'
expect 2 only-rank-0 'rank 1 left the job' 'rank 0 waits for it in all_reduce(f32 x 1000, sum)'
expect 3 only-rank-0 'left the job' 'rank 0 waits for it in all_reduce(f32 x 1000, sum)'
exit $failed
