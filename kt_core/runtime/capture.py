"""One function captured as CUDA graphs, broken wherever a kernel runs on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from kt_core.operators.host import HostFunction, offering

_WARM_UPS = 2
"""Runs before the capture: libraries allocate their workspaces in the first."""


@dataclass
class _HostCall:
    """A kernel on the host between two graphs, with the pinned memory it reads and writes."""

    function: HostFunction
    inputs: list[torch.Tensor]
    output: torch.Tensor
    ready: Any
    """Recorded behind the graph that brings the inputs."""

    def run(self) -> None:
        self.ready.synchronize()
        self.output.copy_(self.function(*self.inputs))


class _Pending:
    def __init__(self, capture: Captured, call: _HostCall) -> None:
        self._capture, self._call = capture, call

    def result(self) -> torch.Tensor:
        return self._capture.finish(self._call)


class Captured:
    """Runs a function of no arguments a few times to record it, then replays what it launched.

    The function must launch the same kernels on the same memory every time; what it returns stays where
    it is. ``reset`` is called before each of these first runs. Raises ``RuntimeError`` (torch's) where
    something cannot be captured.
    """

    def __init__(
        self,
        function: Callable[[], torch.Tensor],
        device: torch.device,
        reset: Callable[[], object] = lambda: None,
    ) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._steps: list[torch.cuda.CUDAGraph | Callable[[], None]] = []
        self._calls: list[_HostCall] = []
        self._next = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device), offering(self):
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    self._next = 0
                    reset()
                    function()
                self._next = 0
                reset()
                torch.cuda.synchronize(device)
                self._begin()
                try:
                    self.result = function()
                except BaseException:
                    self._abandon()
                    raise
                self._end()
            torch.cuda.current_stream(device).wait_stream(stream)

    def replay(self) -> torch.Tensor:
        """Do it again; return the function's result, whose values are new."""
        for step in self._steps:
            if isinstance(step, torch.cuda.CUDAGraph):
                step.replay()
            else:
                step()
        return self.result

    # What operators find as HostCalls while the function runs.

    def call(self, function: HostFunction, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """See :class:`kt_core.operators.host.HostCalls`."""
        call = self._start(function, inputs)
        if self._graph is None:
            return self.finish(call)
        self._end()
        return self._continue(call)

    def submit(self, function: HostFunction, inputs: Sequence[torch.Tensor]) -> _Pending:
        """See :class:`kt_core.operators.host.HostCalls`."""
        call = self._start(function, inputs)
        if self._graph is not None:
            self._end()
            self._record(call)
            self._begin()
        return _Pending(self, call)

    def finish(self, call: _HostCall) -> torch.Tensor:
        """Run a submitted call and bring its result to the GPU."""
        if self._graph is None:
            torch.cuda.synchronize(self._device)
            call.output = _pinned_like(call.function(*call.inputs))
            return call.output.to(self._device)
        self._end()
        return self._continue(call, recorded=True)

    def _start(self, function: HostFunction, inputs: Sequence[torch.Tensor]) -> _HostCall:
        if self._next == len(self._calls):
            pinned = [torch.empty_like(x, device="cpu", pin_memory=True) for x in inputs]
            ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._calls.append(_HostCall(function, pinned, torch.empty(0), ready))
        call = self._calls[self._next]
        self._next += 1
        for pinned_input, x in zip(call.inputs, inputs, strict=True):
            pinned_input.copy_(x, non_blocking=True)
        return call

    def _record(self, call: _HostCall) -> None:
        event = call.ready

        def record() -> None:
            event.record(torch.cuda.current_stream(self._device))

        record()
        self._steps.append(record)

    def _continue(self, call: _HostCall, *, recorded: bool = False) -> torch.Tensor:
        """Run the host's part for real, so that the values it works on are real, and capture on."""
        if not recorded:
            self._record(call)
        call.run()
        self._steps.append(call.run)
        self._begin()
        return call.output.to(self._device, non_blocking=True)

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _abandon(self) -> None:
        """Leave the capture in hand, which did not come to its end."""
        if self._graph is not None:
            with suppress(RuntimeError):  # what broke it is raised already
                self._graph.capture_end()

    def _end(self) -> None:
        """Close the graph in hand and run it: what follows on the host needs its results."""
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.capture_end()
            self._steps.append(graph)
            graph.replay()


def _pinned_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, pin_memory=True).copy_(x)
