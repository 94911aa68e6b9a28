# SPDX-License-Identifier: Apache-2.0
# A build in the source tree is refused, as its Makefile would be overwritten.
source=$2
command -v cmake >/dev/null || exit 77
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
exit $failed
