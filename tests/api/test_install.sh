# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves is enough to build and run a program: the commands and files of docs/guide/own-model.md, as they stand there.
build=$1 source=$2
[ -e "$build/libkumi.so" ] && [ -e "$build/libkumi.a" ] || { echo "libkumi is not built"; exit 77; }
if grep -q '^KUMI_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "a sanitizer's library is not for installing"
    exit 77
fi
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work root=$work/kumi CFLAGS='-Wall -Wextra -Werror'
cmake --install "$build" --prefix "$root" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
libdir=$(dirname "$(find "$root" -name libkumi.a)")
[ "$libdir" = "$root/lib" ] || ln -s "$libdir" "$root/lib" # where CMAKE_INSTALL_LIBDIR is another folder
export PKG_CONFIG_PATH=$root/lib/pkgconfig
[ "$(pkg-config --modversion kumi)" = "$(sed -n 's/^project(kumi VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")" ]
[ "$(cd "$(pkg-config --variable=includedir kumi)" && pwd -P)" = "$(cd "$root/include" && pwd -P)" ]
for header in "$source"/include/kumi/*.h; do
    cmp "$header" "$root/include/kumi/$(basename "$header")"
done
cmp "$source/docs/kumi.1" "$root/share/man/man1/kumi.1"
# `make` builds what `make install` installs: its target kumi takes the plug-ins and the server with it
if [ -e "$build/build.ninja" ]; then
    for file in $(sed -n 's,.* FILES "[^"]*/\(libkumi-mpi-[a-z]*[.]so\|kumi-ps\)").*,\1,p' "$build/cmake_install.cmake"); do
        ninja -C "$build" -t query kumi | grep -q "^ *|| $file\$" || { echo "the target kumi does not build $file, which is installed"; exit 1; }
    done
fi
for plugin in "$build"/libkumi-mpi-*.so; do # found beside the library, whatever the prefix
    make=${plugin##*/libkumi-mpi-} make=${make%.so}
    [ ! -e "$plugin" ] || env -u KUMI_PLUGINS "$root/bin/kumi" info | grep "^ *$make  *[A-Za-z].*[0-9]"
done

[ ! -e "$build/kumi-ps" ] || "$root/bin/kumi" ps bench --help | grep '^usage: kumi ps bench' # beside the command, or nowhere

mkdir "$work/own"
cd "$work/own"
unset RANK
python3 - "$source/docs/guide/own-model.md" <<'P'
import re, sys
block = [b for b in re.findall(r"^```(\w+)\n(.*?)^```$", open(sys.argv[1]).read(), re.M | re.S) if b[0] != "json"]
assert [kind for kind, _ in block] == ["c", "sh", "sh", "sh", "cmake", "sh"], [kind for kind, _ in block]
for i, (kind, text) in enumerate(block):
    open({"c": "circle.c", "cmake": "CMakeLists.txt"}.get(kind, f"{i}.sh"), "w").write(text)
P
gcc -std=c11 -Wall -Wextra -Werror $(pkg-config --cflags kumi) -fsyntax-only circle.c
export LD_LIBRARY_PATH=
for commands in 1 2 3 5; do
    timeout 120 bash -e $commands.sh >"$commands.out" 2>&1 || { cat $commands.sh "$commands.out"; exit 1; }
done
ranks() { sed -n 's/^\([0-9]*\) ranks, loss 0\.0[0-9]*$/\1/p' "$@" | tr '\n' ' '; }
[ "$(ranks 1.out 2.out 3.out 5.out)" = "2 4 2 2 2 " ] || { cat ./*.out; exit 1; }
for program in circle-static build/circle-static; do
    if ldd $program | grep libkumi; then exit 1; fi
done
ldd build/circle | grep -q "$root/lib.*/libkumi.so"
