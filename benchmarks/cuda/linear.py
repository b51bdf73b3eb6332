"""Time the linear kernels beside torch's fp16 and the floor; Marlin's figures are quoted.

usage: linear.py [FORMAT ...]    (default: w4_g128; others: q4_k, q6_k, w8_g32, mxfp4, ...)

Weights rotate through more copies than the L2 cache holds, so every call reads them from memory.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from common import Floor, copies, microseconds
from kt_ops_cuda.layout import FORMATS, packed_bytes

from kt_ops_cuda import ops

SHAPES = ((7168, 2048), (2048, 7168), (4096, 4096), (4096, 14336), (14336, 4096), (7168, 18432))
TOKENS = (1, 4, 8, 16, 32, 64, 128, 512, 2048)
# IST-DASLab/marlin with its L2 hint removed, H200, 2026-11-30: the same timing, other day.
MARLIN = {
    (7168, 2048): {1: 14.9, 16: 15.6, 64: 35.2, 512: 44.7},
    (2048, 7168): {1: 9.5, 16: 9.7, 64: 16.7, 512: 48.1},
    (4096, 4096): {1: 10.4, 16: 10.8, 64: 24.1, 512: 47.5},
    (4096, 14336): {1: 17.1, 16: 17.3, 64: 29.6, 512: 165},
    (14336, 4096): {1: 18.9, 16: 19.4, 64: 38.5, 512: 159},
    (7168, 18432): {1: 33.4, 16: 32.6, 64: 53.8, 512: 373},
}


def row(fmt, columns, rows, tokens_list, floor):
    size = packed_bytes(fmt, rows, columns)
    # Random bytes are valid weights; scales of random bits would be infinite, so they are small ones.
    packed = torch.randint(0, 64, (size,), dtype=torch.uint8, device="cuda")
    weights = [packed.clone() for _ in range(copies(size))]
    dense = [
        torch.randn(rows, columns, device="cuda", dtype=torch.float16)
        for _ in range(copies(2 * rows * columns))
    ]
    for tokens in tokens_list:
        x = torch.randn(tokens, columns, device="cuda", dtype=torch.float16)
        y = torch.empty(tokens, rows, device="cuda", dtype=torch.float16)
        ours = microseconds([partial(ops.linear, x, w, None, fmt.number, rows) for w in weights])
        peer = microseconds([partial(torch.mm, x, w.T, out=y) for w in dense])
        least = floor.of(size + x.nbytes + y.nbytes, 2.0 * tokens * rows * columns)
        marlin = MARLIN[columns, rows].get(tokens) if fmt.name == "w4_g128" else None
        beside = f"{marlin:7.1f} {marlin / ours:6.2f}x" if marlin else " " * 15
        print(
            f"{fmt.name:10s} {columns:5d} x {rows:5d} {tokens:5d} {ours:8.2f} {least:8.2f}"
            f" {ours / least:6.2f} {peer:8.1f} {peer / ours:6.2f}x {beside}",
            flush=True,
        )


def main():
    floor = Floor()
    print(torch.cuda.get_device_name(), floor)
    print("format         K x     N     M  ours us floor us  ratio torch us  faster  Marlin faster")
    for name in sys.argv[1:] or ["w4_g128"]:
        for columns, rows in SHAPES:
            row(FORMATS[name], columns, rows, TOKENS, floor)


if __name__ == "__main__":
    main()
