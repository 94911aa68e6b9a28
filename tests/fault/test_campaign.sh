#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A sample of the campaign of kills, signals, corruptions, hostile inputs and faults of several hosts (tools/campaign): nothing is lost, hangs,
# stays or ends unexplained. KUMI_TEST_ALL=1: 200 faults of several hosts.
set -u
build=$1 source=$2
[ -x "$build/kumi" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
counts=(--kills 5 --signals 5 --corruptions 8 --hostile 16 --hosts 5)
[ -z "${KUMI_TEST_ALL:-}" ] || counts=(--kills 8 --signals 8 --corruptions 10 --hostile 24 --hosts 200)
grep -q '__[at]san_init' "$build/kumi" && counts=(--kills 2 --signals 2 --corruptions 3 --hostile 8 --hosts 2)
python3 -B "$source/tools/campaign" "$build" "${counts[@]}" --seed 14 --jobs 2 --patience 4 --keep "$dir"
