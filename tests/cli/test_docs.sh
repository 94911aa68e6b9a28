#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/configuration.md holds every key with its default and mark as the program has them; docs/exit-codes.md every code.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
while IFS= read -r line; do
    case $line in
    '| `'*) grep -qF -- "$line" "$source/docs/configuration.md" || { echo "docs/configuration.md lacks: $line"; failed=1; } ;;
    esac
done < <("$kumi" help config --markdown)
for code in $(sed -n 's/^    KUMI_E[A-Z]* = -\([0-9]*\).*/\1/p' "$source/include/kumi/status.h"); do
    grep -q "^| $code |" "$source/docs/exit-codes.md" || { echo "docs/exit-codes.md lacks code $code"; failed=1; }
done
exit $failed
