# SPDX-License-Identifier: Apache-2.0
# What CMake does with its folders: a build in the source tree is refused; kumi.pc names the folders of an installation.
source=$2
for program in cmake ninja pkg-config; do command -v $program >/dev/null || exit 77; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
say() { echo "$*"; failed=1; }

mkdir "$work/tree"
cp "$source/CMakeLists.txt" "$work/tree"
echo mine >"$work/tree/Makefile"
if (cd "$work/tree" && cmake -DKUMI_GRPC=ON .) >"$work/log" 2>&1 || ! grep -q 'cmake -S \. -B build' "$work/log"; then
    say "a build in the source tree: $(cat "$work/log")"
fi
[ "$(cat "$work/tree/Makefile")" = mine ] || say "a build in the source tree has overwritten the Makefile"

# The installation of libraries without files, which configures in a fraction of a second.
mkdir "$work/install"
ln -s "$source/cmake" "$work/install/cmake"
cat >"$work/install/CMakeLists.txt" <<'E'
cmake_minimum_required(VERSION 3.25)
project(kumi VERSION 1.2.3 LANGUAGES NONE)
include(GNUInstallDirs)
include(cmake/KumiInstall.cmake)
add_library(kumi_static INTERFACE)
add_library(kumi_shared INTERFACE)
kumi_install()
E
folders() { # LIBDIR and INCLUDEDIR, as given to CMake; the same as kumi.pc says them, if it lies in $work/opt/kumi/lib/pkgconfig
    cmake -S "$work/install" -B "$work/build" -G Ninja -DCMAKE_INSTALL_PREFIX=/opt/kumi -DCMAKE_INSTALL_LIBDIR="$1" \
        -DCMAKE_INSTALL_INCLUDEDIR="$2" >"$work/log" 2>&1 || say "$(cat "$work/log")"
    mkdir -p "$work/opt/kumi/lib/pkgconfig"
    cp "$work/build/kumi.pc" "$work/opt/kumi/lib/pkgconfig/"
    for name in libdir includedir; do
        got=$(realpath -m "$(PKG_CONFIG_PATH=$work/opt/kumi/lib/pkgconfig pkg-config --variable=$name kumi)")
        [ "$got" = "$3" ] || say "LIBDIR $1, INCLUDEDIR $2: $name is $got, not $3"
        set -- "$1" "$2" "$4"
    done
}
folders lib include "$work/opt/kumi/lib" "$work/opt/kumi/include"
folders /srv/lib64 include /srv/lib64 /opt/kumi/include
folders lib /srv/headers "$work/opt/kumi/lib" /srv/headers
folders /srv/lib64 /srv/headers /srv/lib64 /srv/headers
exit $failed
