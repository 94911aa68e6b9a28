#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Servers and workers of kumi ps are killed at seeded moments: no acknowledged update is lost, none is applied twice.
. "$2/tests/cli/begin.sh"
[ -x "$kumi-ps" ] || exit 77
[ -n "${KUMI_TEST_ALL:-}" ] && n=200 || n=10
timeout 1700 python3 tests/fault/ps_kills.py "$kumi" $n "${KUMI_TEST_SEED:-1}" || failed=1
exit $failed
