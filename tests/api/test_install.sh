# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves is enough to build and run a program: with libkumi.so, and with libkumi.a.
build=$1 source=$2
[ -e "$build/libkumi.so" ] && [ -e "$build/libkumi.a" ] || { echo "libkumi is not built"; exit 77; }
if grep -q '^KUMI_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "a sanitizer's library is not for installing"
    exit 77
fi
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/root" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
pc=$(find "$work/root" -name kumi.pc)
cat >"$work/a.c" <<'END'
#include <kumi/dtype.h>
#include <stdio.h>
int main(void)
{
    printf("%s %zu\n", kumi_dtype_name(KUMI_BF16), kumi_dtype_bytes(KUMI_BF16));
    return kumi_last_error()->status;
}
END
flags() { PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$work/root" "$@" kumi; }
lib=$(flags --variable=libdir)
[ "$(flags --modversion)" = "$(sed -n 's/^project(kumi VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")" ]

gcc -std=c11 -Wall -Wextra -Werror $(flags --cflags) "$work/a.c" $(flags --libs) -o "$work/shared"
[ "$(LD_LIBRARY_PATH=$lib "$work/shared")" = "bf16 2" ]
rm "$lib"/libkumi.so* # so that -lkumi is the archive
gcc -std=c11 -Wall -Wextra -Werror $(flags --cflags) "$work/a.c" $(flags --static --libs) -o "$work/static"
[ "$("$work/static")" = "bf16 2" ]
for header in "$source"/include/kumi/*.h; do
    cmp "$header" "$work/root/include/kumi/$(basename "$header")"
done
cmp "$source/docs/kumi.1" "$work/root/share/man/man1/kumi.1"
