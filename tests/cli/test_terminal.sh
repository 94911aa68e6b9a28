#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On terminals of 80, 40 and 20 columns no line is printed over another and no progress line is left behind.
set -u
[ -x "$1/kumi" ] && python3 -c 'import pty' 2>/dev/null || exit 77
timeout 120 python3 -B "$2/tests/cli/terminal.py" "$1/kumi" "$2"
