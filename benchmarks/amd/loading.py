"""How long BF16 experts take to become int8 panels, against reading them from the page cache.

usage: loading.py [--gib 1.0] [--rounds 7] [--folder DIR]

Writes a safetensors file of Qwen3-30B-A3B-shaped layers, reads it into the page cache, then times by
turns: a plain read of the whole file into memory that has been touched before, and loading it into
kernels through the mapped file. Both run on this process's threads; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from kt_ops_amd_blis.experts import MoeInt8
from safetensors.torch import save_file

from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.weights import open_weights
from kt_ops_amd_blis import native

EXPERTS, HIDDEN, INTER = 64, 2048, 768
PARTS = (("gate", INTER, HIDDEN), ("up", INTER, HIDDEN), ("down", HIDDEN, INTER))
PIECE = 4 << 20


def write(path: Path, layers: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{layer}.{name}": torch.randn(EXPERTS, *size, generator=generator).mul_(0.02).bfloat16()
        for layer in range(layers)
        for name, *size in PARTS
    }
    save_file(tensors, path)


def read(path: Path, memory: np.ndarray, threads: int) -> float:
    """Read the whole file, each thread a share of it."""
    handle, size = os.open(path, os.O_RDONLY), path.stat().st_size

    def share(index: int) -> None:
        for start in range(index * PIECE, size, threads * PIECE):
            os.preadv(handle, [memory[start : min(start + PIECE, size)]], start)

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(share, range(threads)))
    took = time.perf_counter() - start
    os.close(handle)
    return took


def load(path: Path, layers: int) -> float:
    shape = ExpertsShape(EXPERTS, HIDDEN, INTER, 8)
    context = KernelContext("loading", torch.bfloat16, torch.device("cpu"), {})
    start = time.perf_counter()
    with open_weights(path) as source:
        for layer in range(layers):
            stacks = [source.tensor(f"{layer}.{name}").unstack() for name, *_ in PARTS]
            kernel = MoeInt8(shape, Activation(), context)
            kernel.load(ExpertsWeights(*stacks))
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()
    layer_bytes = 2 * EXPERTS * sum(rows * columns for _, rows, columns in PARTS)
    layers = max(1, round(args.gib * (1 << 30) / layer_bytes))
    threads = native.threads()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "experts.safetensors"
        write(path, layers)
        size = path.stat().st_size
        memory = np.zeros(size, np.uint8)
        memory[:] = 1
        read(path, memory, threads)  # and now it is in the page cache
        load(path, layers)
        rounds = [(read(path, memory, threads), load(path, layers)) for _ in range(args.rounds)]
    reading, loading = (statistics.median(times) for times in zip(*rounds, strict=True))
    ratio = statistics.median(b / a for a, b in rounds)
    gib = size / (1 << 30)
    print(f"{gib:.2f} GiB of BF16, {threads} threads")
    print(f"read from the page cache: {reading:.3f} s, {size / reading / 1e9:.1f} GB/s")
    print(
        f"quantised and reordered:  {loading:.3f} s, {size / loading / 1e9:.1f} GB/s, {ratio:.2f}x"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
