#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoding speed of GPT-2 in PyTorch, a peer of bench/performance.py: one JSON line with the median tokens per second.

    pytorch_sample.py --threads 2 --tokens 128 [--compile]

The model of pytorch_gpt2.py with random weights in bf16, one sequence, greedy, with a static cache of keys and values: every token has the same shapes, so
that torch.compile compiles once, with its weights frozen (packed as its kernels like them). It needs no other package than PyTorch.
"""
import argparse
import json
import statistics
import time

import torch
import torch._inductor.config
import torch.nn.functional as F

from pytorch_gpt2 import GPT2


class Decoder(torch.nn.Module):
    """A token at `position`: reads and extends the cache [layer][key or value][1, head, place, width]."""

    def __init__(self, model, places):
        super().__init__()
        self.model, self.places = model, places

    def cache(self):
        weight, heads = self.model.wte.weight, self.model.h[0].heads
        return torch.zeros(len(self.model.h), 2, 1, heads, self.places, weight.shape[1] // heads, dtype=weight.dtype)

    def forward(self, token, position, cache):
        m = self.model
        x = m.wte(token) + m.wpe(position)
        mask = (torch.arange(self.places) <= position)[None, None, None, :]
        for i, block in enumerate(m.h):
            q, k, v = block.qkv(block.ln_1(x)).view(1, 1, 3, block.heads, -1).permute(2, 0, 3, 1, 4)
            cache[i, 0].index_copy_(2, position, k)
            cache[i, 1].index_copy_(2, position, v)
            y = F.scaled_dot_product_attention(q, cache[i, 0], cache[i, 1], attn_mask=mask)
            x = x + block.proj(y.transpose(1, 2).reshape(1, 1, -1))
            x = x + block.out(F.gelu(block.fc(block.ln_2(x)), approximate="tanh"))
        return m.head(m.ln_f(x)).argmax(-1)


def main():
    p = argparse.ArgumentParser()
    for name, value in dict(threads=2, tokens=128, warm=8, layers=12, heads=12, width=768, vocab=50257).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--compile", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    model = GPT2(a.layers, a.heads, a.width, 1024, a.vocab).to(torch.bfloat16).eval()
    step = Decoder(model, a.warm + a.tokens)
    cache = step.cache()
    if a.compile:
        torch._inductor.config.freezing = True
        step = torch.compile(step)
    token, times = torch.zeros(1, 1, dtype=torch.long), []
    with torch.no_grad():
        for i in range(a.warm + a.tokens):
            begin = time.perf_counter()
            token = step(token, torch.tensor([i]), cache)
            token.item()
            if i >= a.warm:
                times.append(1e3 * (time.perf_counter() - begin))
    print(json.dumps({"peer": "pytorch " + torch.__version__, "threads": a.threads, "compiled": a.compile, "times_ms": times,
                      "tps": 1e3 / statistics.median(times)}))


if __name__ == "__main__":
    main()
