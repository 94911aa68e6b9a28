#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What README, docs and comments of public headers cite is there: files, sections of pages, functions, keys, commands and their options.
kumi=$1/kumi source=$2
[ -x "$kumi" ] || exit 77
exec python3 -B "$(dirname "$0")/references.py" "$kumi" "$source"
