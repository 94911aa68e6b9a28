#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What README, docs and comments cite is there: files, sections of pages, functions, keys, commands and their options. README is short,
# every page is reachable from it, and measured figures are those of the page with the measurements.
kumi=$1/kumi source=$2
[ -x "$kumi" ] || exit 77
exec python3 -B "$(dirname "$0")/references.py" "$kumi" "$source"
