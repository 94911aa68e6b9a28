#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Links between hosts in network namespaces that go down (tools/campaign/links.py): one for 3 s, which the job survives, and one for good, which
# ends it. KUMI_TEST_ALL=1: 24, over TCP and MPI.
set -u
build=$1 source=$2
[ -x "$build/kumi" ] || exit 77
bash "$source/tests/hosts/hosts.sh" with 1 true || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
n=2 # by this seed
[ -z "${KUMI_TEST_ALL:-}" ] || n=24
python3 -B "$source/tools/campaign" "$build" --links $n --seed 16 --jobs 2 --patience 4 --keep "$dir"
