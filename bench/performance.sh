#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything of docs/reference/performance.md in one command: bench/performance.sh [--help] [SECTION ...]
exec python3 -B "$(dirname "$0")/performance.py" "$@"
