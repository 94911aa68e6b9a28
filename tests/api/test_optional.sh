# SPDX-License-Identifier: Apache-2.0
# Sources with an optional part (KUMI_CAIRO, KUMI_JPEG, KUMI_PNG, KUMI_URING) compile without it.
source=$2
command -v gcc >/dev/null || exit 77
cd "$source" || exit 1
files=$(grep -rlE '^#ifn?def KUMI_' src --include='*.c')
for file in $files; do
    gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -Isrc -Iinclude "$file" || failed=1
done
echo "$(wc -w <<<"$files") files"
[ -n "$files" ] && [ -z "$failed" ]
