#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a build folder: check.sh BUILD JOBS [LABELS]. Ends with the line "N passed, N failed, N skipped",
# before which stand the names of skipped tests, and of functions that a program skipped.
# Two tests for each job run at a time, because many wait: for time-outs, and for ranks that were killed.
set -u
build=$1 jobs=$2 labels=${3:-.}
log=$build/check.log
ctest --test-dir "$build" -j $((2 * jobs)) -L "$labels" --output-on-failure --no-tests=error >"$log" 2>&1
status=$?
if [ $status -ne 0 ]; then cat "$log"; fi
count() { grep -cE "^ *[0-9]+/[0-9]+ Test +#.*$1" "$log"; }
passed=$(count '  Passed ') skipped=$(count '\*\*\*Skipped')
total=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#' "$log")
grep -E 'sec\*proc|Total Test time' "$log"
sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*Skipped.*/skipped: \1/p' "$log"
sed -nE '/^[0-9]+\/[0-9]+ Test: /{s///;h}; /^\[  SKIPPED \] [A-Za-z_]/{G;s/^\[  SKIPPED \] (.*)\n(.*)/skipped: \2: \1/p}' \
    "$build/Testing/Temporary/LastTest.log" | sort -u
echo "$passed passed, $((total - passed - skipped)) failed, $skipped skipped"
exit $status
