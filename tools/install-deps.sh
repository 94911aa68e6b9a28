#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing kumi needs on Debian 12, if it is not there. As root only; otherwise says what to run.
# Optional: libgrpc-dev (kumi ps; 10 MB to load, 62 MB installed); with libprotobuf-c-dev protobuf-c-compiler its tests.
# Optional, and too large for every build (43 MB to load, 215 MB installed): libopenmpi-dev openmpi-bin libmpich-dev mpich
# Optional, of tests: iproute2 (hosts in network namespaces), slurm-wlm munge (two nodes of Slurm on this machine)
set -eu
packages="gcc g++ make cmake ninja-build pkg-config libjansson-dev libpcre2-dev libhwloc-dev libcmocka-dev
libxxhash-dev libssl-dev libcairo2-dev libjpeg-dev libpng-dev liburing-dev python3"
packages="$packages $*" # more, as CI asks for
missing=
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "kumi needs packages that are not installed; as root: apt-get install$missing" >&2
    exit 2
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -20 "$log" >&2
    exit 2
fi
rm -f "$log"
