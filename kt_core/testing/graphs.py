"""Whether something may be captured in a CUDA graph, which decode steps are replayed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kt_core.testing.cases import require


def captured(call: Callable[[], torch.Tensor]) -> None:
    """Run ``call`` eagerly and as a captured CUDA graph; both must give the same.

    Raises:
        AssertionError: if they differ.
    """
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(2):
            expected = call().clone()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        actual = call()
    graph.replay()
    torch.cuda.synchronize()
    require(torch.equal(actual, expected), "a replayed CUDA graph differs from an eager call")
