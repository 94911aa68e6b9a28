#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The digest of one rank under tp x pp x schedules x dp x stages of ZeRO x recomputation, and runs that go on in other layouts; a seeded sample, or
# all with KUMI_TEST_ALL=1. The table and the runs are in model_parallel.py.
. "$2/tests/cli/begin.sh"
python3 -B "$2/tests/cli/model_parallel.py" "$kumi" "$dir" || failed=1
exit $failed
