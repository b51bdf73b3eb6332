"""Shared by the scripts of this folder: timing by graph replay, floors measured on the spot."""

from __future__ import annotations

import statistics
from functools import partial

import torch

L2_BYTES = 60e6


def microseconds(calls, repeats=9):
    """Median time of one call: all of ``calls`` in one graph, replayed; device events around it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def copies(nbytes, least=3, most=48):
    """How many copies of a weight keep a rotation through them out of the L2 cache."""
    return max(least, min(most, int(6 * L2_BYTES / nbytes) + 1))


class Floor:
    """What the device can do at best, measured: copying (read + write) and bf16 products."""

    def __init__(self):
        # A kernel, not copy_: in a graph that becomes a copy node, which is slower.
        source = torch.ones(2**28, device="cuda")
        target = torch.empty_like(source)
        time = microseconds([partial(torch.neg, source, out=target)] * 3, 5)
        self.bandwidth = 2 * source.nbytes / time * 1e6
        del source, target
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        b = torch.empty_like(a)
        self.rate = 2 * 8192**3 / microseconds([partial(torch.mm, a, a, out=b)] * 3, 5) * 1e6

    def __str__(self):
        return f"copy {self.bandwidth / 1e12:.2f} TB/s, bf16 {self.rate / 1e12:.0f} TFLOP/s"

    def of(self, nbytes, operations=0.0):
        """Microseconds for so many bytes through memory and operations."""
        return max(nbytes / self.bandwidth, operations / self.rate) * 1e6
