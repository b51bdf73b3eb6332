"""Values per second dequantised to float32: kt_core.weights against gguf.dequantize, in one run.

usage: python benchmarks/weights/dequantize.py [TYPE ...]

Random blocks of a (4096, 4096) tensor; the two take turns, medians and their ratio are printed. Both
give the same bits. The floor is writing as many float32 zeros.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import gguf
import numpy as np

from kt_core.weights import DEQUANTIZABLE, LAYOUTS, PLAIN, PackedTensor, QuantType

SHAPE = (4096, 4096)
ROUNDS = 3


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    wanted = sys.argv[1:] or sorted(
        kind for kind in DEQUANTIZABLE - PLAIN | {QuantType.BF16, QuantType.F16}
    )
    values = SHAPE[0] * SHAPE[1]
    floor = statistics.median(
        seconds(lambda: np.zeros(SHAPE, np.float32).fill(0)) for _ in range(ROUNDS)
    )
    print(f"floor (write the result): {values / floor / 1e6:8.0f} Mvalues/s")
    np.seterr(all="ignore")
    for name in wanted:
        kind = QuantType(name)
        layout = LAYOUTS[kind]
        width = SHAPE[1] // layout.block_size * layout.block_bytes
        data = np.random.default_rng(0).integers(0, 256, (SHAPE[0], width), np.uint8)
        tensor = PackedTensor(name, SHAPE, kind, data)
        number = gguf.GGMLQuantizationType[name]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            times[0].append(seconds(tensor.dequantize))
            times[1].append(seconds(lambda d=data, n=number: gguf.dequantize(d, n)))
        ours, theirs = (statistics.median(part) for part in times)
        print(
            f"{name:<8} kt_core {values / ours / 1e6:7.0f}   gguf {values / theirs / 1e6:7.0f}"
            f"   ratio {theirs / ours:5.2f}"
        )


if __name__ == "__main__":
    main()
