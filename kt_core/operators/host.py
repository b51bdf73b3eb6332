"""How an operator runs a kernel on the host while the rest of a step is captured on a GPU.

A CUDA graph cannot hold Python. Where a capture is under way, operators hand their host kernels to it, and
it breaks the graph there (:mod:`kt_core.runtime.capture`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

HostFunction = Callable[..., torch.Tensor]


class Pending(Protocol):
    """A call on the host that was submitted."""

    def result(self) -> torch.Tensor:
        """Its result, on the GPU. Call once."""


class HostCalls(Protocol):
    """What a capture offers. Calls come in the same order in every step."""

    def call(self, function: HostFunction, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return ``function(*inputs)`` on the GPU; ``inputs`` are there, ``function`` sees host copies."""

    def submit(self, function: HostFunction, inputs: Sequence[torch.Tensor]) -> Pending:
        """The same, while the GPU does what the caller launches until it asks for the result."""


class _Local(threading.local):
    calls: HostCalls | None = None


_local = _Local()


def host_calls(kernel_device: torch.device, x: torch.Tensor) -> HostCalls | None:
    """The capture under way, if ``x`` is on the GPU and the kernel on the host; else ``None``."""
    return _local.calls if kernel_device.type == "cpu" and x.is_cuda else None


@contextmanager
def offering(calls: HostCalls) -> Iterator[None]:
    """Let operators of this thread find ``calls``."""
    before, _local.calls = _local.calls, calls
    try:
        yield
    finally:
        _local.calls = before
