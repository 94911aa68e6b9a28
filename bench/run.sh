#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kumi and PyTorch on GPT-2 124M, side by side on this machine: bench/run.sh [BUILD]. PyTorch comes from pip into a throw-away
# environment ($PEER_ENV, default a temporary folder that is removed). Never part of the tests.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
env=${PEER_ENV:-}
if [ -z "$env" ]; then
    env=$(mktemp -d)
    trap 'rm -rf "$env"' EXIT
    python3 -m venv "$env"
    "$env/bin/pip" install -q torch numpy
fi
out=$(mktemp -d)
lscpu | grep 'Model name'
for dtype in f32 bf16; do
    "$build/kumi" train configs/gpt2-124m.json -n 2 --overwrite --out "$out" --set train.steps=10 --set precision.compute=$dtype \
        --set train.threads=1 2>/dev/null | grep tokens/s | sed "s/^/kumi 2 ranks x 1 thread $dtype: /"
    "$env/bin/python" bench/pytorch_gpt2.py --procs 2 --threads 1 --dtype $dtype
    "$env/bin/python" bench/pytorch_gpt2.py --procs 1 --threads 2 --dtype $dtype
done
rm -rf "$out"
