"""Decoding by replaying captured CUDA graphs.

A decode step of a large model is hundreds of small kernels, and starting them one by one from Python takes
several times as long as running them. A step that is captured once costs a single launch, or one for every
kernel on the host it is broken by. What it needs: one GPU, kernels that are safe in a graph or run on the
host, and a cache that stays where it is.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from kt_core.models.hf import embedding_of, forward_logits
from kt_core.models.hf_static import FixedCache, can_be_fixed
from kt_core.operators.operator import Phase, PhasedOperator
from kt_core.runtime.capture import Captured

_SMALLEST_ROOM = 512


class Unsuitable(Exception):  # noqa: N818 - a reason, handled where it is raised
    """Why a model cannot be captured; decoding then goes on step by step."""


class CapturedStep:
    """One decode step of a model over a fixed cache. Holds no reference to the model.

    Off a GPU nothing is captured and :meth:`run` computes the step, which is how it is tested.
    """

    def __init__(self, model: nn.Module, cache: Any, room: int, device: torch.device) -> None:
        self.cache = FixedCache.like(cache, room)
        self.cache.take(cache)
        self._input = _step_input(model, device)
        self._captured: Captured | None = None
        if device.type == "cuda":
            # Recording runs the step. What it leaves in the cache, the first token overwrites.
            position = self.cache.position
            start = position.clone()
            with torch.inference_mode():
                self._captured = Captured(
                    lambda: self._step(model), device, lambda: position.copy_(start)
                )
            position.copy_(start)

    def _step(self, model: nn.Module) -> torch.Tensor:
        logits = forward_logits(model, self._input, self.cache)[0, -1]
        self.cache.position.add_(1)
        return logits

    def run(self, model: nn.Module, token: torch.Tensor) -> torch.Tensor:
        """Run ``token`` ``(1, 1)``; return its logits ``(vocab,)``, valid until the next call."""
        with torch.inference_mode():
            if self._input.is_floating_point():
                self._input.copy_(embedding_of(model)(token))
            else:
                self._input.fill_(int(token))  # a kernel's argument; a copy would wait for the GPU
            return self._step(model) if self._captured is None else self._captured.replay()


def _step_input(model: nn.Module, device: torch.device) -> torch.Tensor:
    """Where the next token is put: its id, or its embedding if that is looked up on the host."""
    weight = embedding_of(model).weight
    if weight.device.type == "cpu" and device.type == "cuda":
        return torch.zeros(1, 1, weight.shape[1], dtype=weight.dtype, device=device)
    return torch.zeros(1, 1, dtype=torch.int64, device=device)


class GraphDecoder:
    """Decodes one sequence by captured steps, with a larger cache whenever the old one is full."""

    def __init__(self, model: nn.Module, cache: Any, tokens: int, device: torch.device) -> None:
        """Continue ``cache``; ``tokens`` is how many more are expected.

        Raises:
            Unsuitable: if the step cannot be captured.
        """
        self._model = model
        self._device = device
        self._length = int(cache.get_seq_length())
        self._captured = self._take(cache, room_for(self._length + tokens))

    def _take(self, cache: Any, room: int) -> CapturedStep:
        kept = _spare.pop(self._model, None)
        if kept is not None and kept.cache.room >= room:
            kept.cache.take(cache)
            return kept
        del kept  # its memory is needed for the next
        try:
            return CapturedStep(self._model, cache, room, self._device)
        except torch.OutOfMemoryError as error:
            raise Unsuitable(f"a cache of {room} tokens does not fit the GPU") from error
        except RuntimeError as error:
            raise Unsuitable(str(error).splitlines()[0]) from error

    def step(self, token: torch.Tensor) -> torch.Tensor:
        """Run ``token`` ``(1, 1)``; return its logits ``(vocab,)``, valid until the next call."""
        if self._length == self._captured.cache.room:
            try:
                self._captured = self._take(self._captured.cache, 2 * self._length)
            except Unsuitable as reason:
                raise reason.__cause__ or reason from None
        self._length += 1
        return self._captured.run(self._model, token)

    def close(self) -> None:
        """Leave the captured step to the next sequence."""
        _spare[self._model] = self._captured


_spare: WeakKeyDictionary[nn.Module, CapturedStep] = WeakKeyDictionary()
"""A captured step of each model that no sequence uses now; the next one continues with it."""


def room_for(tokens: int) -> int:
    """The size of cache for ``tokens``: a power of two, so that few are ever captured."""
    return int(max(_SMALLEST_ROOM, 1 << (tokens - 1).bit_length()))


def graph_device(model: nn.Module, cache: Any) -> torch.device:
    """The one GPU of ``model``. Experts, linears and the embedding may be on the host.

    Raises:
        Unsuitable: if a decode step cannot be captured.
    """
    embedding = embedding_of(model)
    looked_up = {id(tensor) for tensor in (*embedding.parameters(), *embedding.buffers())}
    devices = {
        _indexed(tensor.device)
        for tensor in (*model.parameters(), *model.buffers())
        if id(tensor) not in looked_up
    }
    for operator in model.modules():
        if not isinstance(operator, PhasedOperator):
            continue
        kernel: Any = operator.kernels[Phase.DECODE]
        if kernel.context.device.type == "cpu":
            continue
        devices.add(_indexed(kernel.context.device))
        if not kernel.graph_safe:
            chosen = operator.context.kernels[Phase.DECODE].name
            raise Unsuitable(f"{chosen} of {operator.context.path} cannot be captured")
    if len(devices) != 1:
        raise Unsuitable(f"the model is on {', '.join(sorted(map(str, devices)))}")
    device = devices.pop()
    if device.type != "cuda":
        raise Unsuitable(f"the model is on {device}")
    if not can_be_fixed(cache):
        kinds = sorted({type(layer).__name__ for layer in cache.layers})
        raise Unsuitable(f"its cache has layers of another kind ({', '.join(kinds)})")
    return device


def _indexed(device: torch.device) -> torch.device:
    """``cuda`` with the number that it means now."""
    index: int | None = device.index  # torch's types leave None out
    if device.type == "cuda" and index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
