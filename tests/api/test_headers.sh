# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, twice included, as C11 and C++17, by every compiler that is here.
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

compiles() { # header include_folder
    for compiler in "gcc -std=c11" "g++ -std=c++17" "clang -std=c11" "clang++ -std=c++17"; do
        command -v "${compiler%% *}" >/dev/null || continue
        case $compiler in *++*) language=c++ ;; *) language=c ;; esac
        printf '#include "%s"\n#include "%s"\n' "$1" "$1" |
            $compiler -x $language -pedantic-errors -Wall -Wextra -Wundef -Werror -fsyntax-only \
                -I "$2" - 2>&1 || return 1
    done
}

mkdir "$work/kumi"
printf 'size_t kumi_x(int new);\n' >"$work/kumi/bad.h" # no size_t without stddef.h; `new` is C++'s
if compiles kumi/bad.h "$work" >"$work/log"; then
    echo "a header that cannot stand alone was accepted"
    failed=1
fi
count=0
for header in "$source"/include/kumi/*.h; do
    compiles "kumi/$(basename "$header")" "$source/include" || failed=1
    count=$((count + 1))
done
echo "$count headers"
[ $count -gt 0 ] && [ $failed = 0 ]
