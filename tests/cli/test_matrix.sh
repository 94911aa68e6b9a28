#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The digest of one rank on hosts x ranks x transports x stages x groups x where whole values lie x dtypes x accumulation, with processes on pretended
# hosts, and runs that go on in other layouts; a seeded sample, or all with KUMI_TEST_ALL=1. The table and the runs are in matrix.py.
. "$2/tests/cli/begin.sh"
python3 -B "$2/tests/cli/matrix.py" "$kumi" "$(realpath "$1")" "$dir" || failed=1
exit $failed
