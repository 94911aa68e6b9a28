# SPDX-License-Identifier: Apache-2.0
# libkumi.so gives away kumi_* and nothing else, and all that the headers declare; libkumi.a's other names begin with ku_.
build=$1 source=$2
shared=$build/libkumi.so static=$build/libkumi.a
[ -e "$shared" ] && [ -e "$static" ] || { echo "libkumi is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

nm -D --defined-only "$shared" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/exported"
sed 's@/\*.*\*/@@' "$source"/include/kumi/*.h | tr '\n' ' ' | grep -oE 'KUMI_API [^;{]*' |
    grep -oE 'kumi_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u >"$work/functions"

if grep -v '^kumi_' "$work/exported"; then
    echo "libkumi.so exports these; only kumi_* leaves it"
    failed=1
fi
if grep -qx kumi_last_error "$work/functions" && comm -13 "$work/exported" "$work/functions" | grep .; then
    echo "declared by a public header, but not in libkumi.so"
    failed=1
fi
if comm -23 "$work/exported" "$work/functions" | grep .; then
    echo "in libkumi.so, but declared by no public header"
    failed=1
fi
if nm -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 { print $3 }' | grep -vE '^(ku|kumi)_|^__(odr_)?asan|^__start_|^__stop_'; then
    echo "libkumi.a: names without ku_ can collide with a program's own"
    failed=1
fi
echo "$(wc -l <"$work/exported") functions"
grep -qx kumi_last_error "$work/exported" && [ $failed = 0 ]
