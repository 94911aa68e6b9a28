#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The digest of one rank under tp x pp x schedules x dp x stages of ZeRO x recomputation, and runs that go on in other layouts; a seeded sample, or
# all with KUMI_TEST_ALL=1. The table and the runs are in model_parallel.py; so are the tables of digests, whose verdict
# is tested with a program that trains nothing.
. "$2/tests/cli/begin.sh"
python3 -B "$2/tests/cli/model_parallel.py" "$kumi" "$dir" || failed=1

cat >"$dir/equal" <<'END'
#!/bin/sh
case $(cat "$2") in *v-min*) echo "kumi: error: too | small" >&2; exit 2 ;; esac
echo "digest: sha256:0123456789"
END
sed 's/exit 2 ;;/exit 70 ;; *zb-h2*) echo "digest: 1"; exit ;;/' "$dir/equal" >"$dir/unequal"
chmod +x "$dir"/equal "$dir"/unequal
for row in "unequal 1 152 layouts, 2 digests, 16 failed" "equal 0 152 layouts, 1 digest, 16 refused"; do
    read -r what want line <<<"$row"
    mkdir "$dir/grid"
    python3 -B "$2/tests/cli/model_parallel.py" "$dir/$what" "$dir/grid" --grid llama >"$dir/out" 2>&1
    code=$?
    [ $code -eq "$want" ] && [ "$(tail -1 "$dir/out")" = "llama: $line" ] || say "--grid, $what: $code: $(cat "$dir/out")"
    rm -r "$dir/grid"
done
grep -qF '| 2 | v-min | refused: too \| small |' "$dir/out" && grep -qF '| 4 | gpipe | 01234567 | 01234567 |' "$dir/out" || say "--grid: $(cat "$dir/out")"
exit $failed
