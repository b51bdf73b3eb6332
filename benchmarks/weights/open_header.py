"""Time to open a GGUF file's header: kt_core.weights against gguf.GGUFReader, in one run.

usage: python benchmarks/weights/open_header.py MODEL.gguf [ROUNDS]

The two take turns; medians and their ratio are printed. The floor is reading the same header bytes
in one piece. "with vocabulary" also decodes every metadata value, which is what gguf always does.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import gguf

from kt_core.weights import open_weights


def opened(path: str) -> None:
    open_weights(path).close()


def opened_and_decoded(path: str) -> None:
    with open_weights(path) as source:
        dict(source.metadata)


def header_bytes(path: str) -> int:
    with open_weights(path) as source:
        return min(info.offset for info in source.tensors.values())


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    path = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    size = header_bytes(path)

    def floor() -> None:
        with open(path, "rb") as file:
            file.read(size)

    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, call in (
            ("read the header's bytes", floor),
            ("kt_core open_weights", lambda: opened(path)),
            ("kt_core with vocabulary", lambda: opened_and_decoded(path)),
            ("gguf.GGUFReader", lambda: gguf.GGUFReader(path)),
        ):
            times.setdefault(name, []).append(seconds(call))
    peer = statistics.median(times["gguf.GGUFReader"])
    print(f"{path}: header of {size:,} bytes, median of {rounds}")
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {name:<26} {middle * 1e3:10.2f} ms   gguf / this = {peer / middle:8.1f}")


if __name__ == "__main__":
    main()
