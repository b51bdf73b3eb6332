"""Calls from an accelerator to kernels on the host that leave the accelerator free meanwhile.

What a call needs travels on a side stream into pinned memory, a worker thread waits for that, runs the
kernel and sends the result back on the same stream. The caller goes on launching work of its own and
joins when it needs the result: a wait of its stream, not of its thread, once the kernel is done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

Run = Callable[..., torch.Tensor]
"""Host tensors to one host tensor of the first one's shape and dtype."""

Result = Callable[[], torch.Tensor]
"""Waits for a call's result and returns it; raises what the call raised."""


class HostLane:
    """The way from one device to the host and back; one call at a time is under way.

    All modules of a device share it, and threads may.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._last: tuple[int, Future[Any]] | None = None

    def submit(self, run: Run, inputs: Sequence[torch.Tensor]) -> Result:
        """Start ``run`` on host copies of ``inputs``; return what waits for its result."""
        with self._lock:
            # Let the call before this one finish: its buffers are used again. One from before a fork
            # never will.
            if self._last is not None and self._last[0] == os.getpid():
                self._last[1].exception()
            future, result = self._start(run, inputs)
            self._last = (os.getpid(), future)
        return result

    def _start(self, run: Run, inputs: Sequence[torch.Tensor]) -> tuple[Future[Any], Result]:
        def work() -> torch.Tensor:
            with torch.inference_mode():
                y = run(*(tensor.cpu() for tensor in inputs))
                return y.to(self._device)

        future = _worker(os.getpid()).submit(work)
        return future, future.result


class CudaLane(HostLane):
    """The same with pinned memory and a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers: dict[int, torch.Tensor] = {}

    def _start(self, run: Run, inputs: Sequence[torch.Tensor]) -> tuple[Future[Any], Result]:
        side = self._side
        # Allocated on the caller's stream, which waits for `done` before it reads: no other order is
        # needed for the memory to be reused safely.
        output = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            staged = [self._pinned(slot, tensor) for slot, tensor in enumerate(inputs)]
            for buffer, tensor in zip(staged, inputs, strict=True):
                buffer.copy_(tensor, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(side)

        def work() -> torch.cuda.Event:
            copied.synchronize()
            with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(side):
                y = run(*staged)
                back = self._pinned(len(staged), y)
                back.copy_(y)
                output.copy_(back, non_blocking=True)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(side)
                return done

        future = _worker(os.getpid()).submit(work)
        kept = inputs  # the copies read them until the caller's stream has joined

        def result() -> torch.Tensor:
            nonlocal kept
            done = future.result()
            torch.cuda.current_stream(self._device).wait_event(done)
            kept = ()
            return output

        return future, result

    def _pinned(self, slot: int, like: torch.Tensor) -> torch.Tensor:
        """A view of the buffer ``slot``, enlarged where it is too small, as ``like``."""
        needed = like.numel() * like.element_size()
        held = self._buffers.get(slot)
        if held is None or held.numel() < needed:
            size = 1 << max(12, (needed - 1).bit_length())
            with torch.inference_mode(False):  # later calls may come from outside of it
                held = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            self._buffers[slot] = held
        return held[:needed].view(like.dtype).view(like.shape)


@lru_cache(maxsize=64)
def lane_from(device: torch.device) -> HostLane:
    """The lane of ``device``, shared by all modules on it."""
    return CudaLane(device) if device.type == "cuda" else HostLane(device)


@lru_cache(maxsize=1)
def _worker(process: int) -> ThreadPoolExecutor:
    """One thread per process: a forked child does not inherit threads, so it gets its own."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="kt-offload")
