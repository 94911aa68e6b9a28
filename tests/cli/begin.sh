# SPDX-License-Identifier: Apache-2.0
# How tests of the command begin: . "$2/tests/cli/begin.sh", with the arguments BUILD SOURCE of the test. They end with exit $failed.
set -u
kumi=$(realpath "$1")/kumi source=$(realpath "$2") failed=0
[ -x "$kumi" ] || exit 77
export LC_ALL=C.UTF-8 KUMI_CACHE=${KUMI_CACHE:-$(realpath "$1")/cache} # not that of the user
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$source" || exit 1
say() { echo "$*"; failed=1; }
# await CMD: runs CMD until it succeeds, a minute at most (usual: below a second)
await() { for _ in $(seq 600); do "$@" && return; sleep 0.1; done; return 1; }
