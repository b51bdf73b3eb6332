"""Time one layer of experts (128 x 2048 x 768, top-8) beside its floor and torch's dense bf16 work.

usage: experts.py [GATE_UP_FORMAT DOWN_FORMAT]    (default: q4_k q6_k)

Layers rotate, and experts are drawn at random for each, so weights come from memory.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from common import Floor, copies, microseconds
from kt_ops_cuda.layout import FORMATS, packed_bytes

from kt_ops_cuda import native, ops

EXPERTS, HIDDEN, WIDTH, TOP_K = 128, 2048, 768, 8


def main():
    first, second = (FORMATS[name] for name in (sys.argv[1:3] or ["q4_k", "q6_k"]))
    floor = Floor()
    print(torch.cuda.get_device_name(), floor)
    inner = packed_bytes(first, 2 * WIDTH, HIDDEN)
    outer = packed_bytes(second, HIDDEN, WIDTH)
    layers = [
        tuple(
            torch.randint(0, 64, (EXPERTS, size), dtype=torch.uint8, device="cuda")
            for size in (inner, outer)
        )
        for _ in range(copies(EXPERTS * (inner + outer), least=4, most=8))
    ]
    print(f"gate, up {first.name}, down {second.name}")
    print("tokens  ours us  floor us  ratio  experts   dense bf16 us  of that")
    run = ops.experts
    fixed = (first.number, second.number, EXPERTS, WIDTH, native.SILU, 1.702, 7.0)
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    for tokens in (1, 2, 4, 8, 16, 32, 128, 512, 2048, 4096):
        x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        calls, used = [], []
        for _ in range(8):
            for layer in layers:
                scores = torch.rand(tokens, EXPERTS, device="cuda")
                weights, ids = scores.topk(TOP_K, dim=-1)
                used.append(ids.unique().numel())
                calls.append(partial(run, x, ids, weights, *layer, None, None, bad, *fixed))
        ours = microseconds(calls)
        experts = sum(used) / len(used)
        work = 2.0 * tokens * TOP_K * 3 * HIDDEN * WIDTH
        least = floor.of(experts * (inner + outer) + 2 * x.nbytes, work)
        # The same arithmetic as one dense product: what torch needs where nothing is sparse.
        pairs = tokens * TOP_K
        a = torch.randn(pairs, HIDDEN, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(HIDDEN, 3 * WIDTH, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(pairs, 3 * WIDTH, device="cuda", dtype=torch.bfloat16)
        dense = microseconds([partial(torch.mm, a, w, out=out)] * 8)
        print(
            f"{tokens:6d} {ours:8.1f} {least:9.1f} {ours / least:6.2f} {experts:8.1f}"
            f" {dense:15.1f} {dense / ours:8.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
