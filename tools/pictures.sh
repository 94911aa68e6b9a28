#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the curves of README and docs from their points in docs/images/data, into docs/images or the folder that is given.
# The pictures of memory plans come from `kumi plan --picture`; the commands stand beside them in docs/reference/memory.md and docs/reference/sharding.md.
set -eu
cd "$(dirname "$0")/.."
to=${1:-docs/images} data=docs/images/data
python3 -B tools/curve.py --log --unit 'loss=cross-entropy, nats per character' --reference 'nanoGPT, as published for that setting=1.88' \
    "$to/loss.svg" "kumi, nanoGPT's CPU setting (configs/nanogpt-cpu.json), f32=$data/loss-nanogpt-cpu.jsonl" \
    "kumi, make train (configs/shakespeare-fast.json), bf16=$data/loss-make-train.jsonl"
python3 -B tools/curve.py --log --difference --unit 'loss=cross-entropy, nats per byte' \
    --train-label 'training (kumi: every 10th step, PyTorch: mean of 10 steps)' \
    "$to/llama.svg" "kumi=$data/llama-kumi.jsonl" "PyTorch=$data/llama-pytorch.jsonl"
python3 -B tools/curve.py --log --difference --panels loss,bleu \
    --unit 'loss=cross-entropy, nats per target token' --unit 'bleu=BLEU of the development pairs' \
    --val-label 'validation, labels not smoothed' --train-label 'training, labels smoothed by 0.1, every 20th step' \
    "$to/enja.svg" "kumi=$data/enja-kumi.jsonl" "PyTorch=$data/enja-pytorch.jsonl"
python3 -B tools/curve.py --x epoch --panels loss,accuracy --unit 'loss=cross-entropy, nats per image' --unit 'accuracy=accuracy, share of images' \
    --train-label 'training, mean of the epoch' --val-label 'test images' \
    "$to/resnet20.svg" "kumi=$data/resnet20-kumi.jsonl" "PyTorch=$data/resnet20-pytorch.jsonl"
