"""Decoding, one token at a time: by a captured graph where that is possible, else step by step."""

from __future__ import annotations

import logging
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn

from kt_core.models.hf import forward_logits
from kt_core.operators.operator import Phase, PhasedOperator
from kt_core.runtime.graph import GraphDecoder, Unsuitable, graph_device

logger = logging.getLogger(__name__)

_LONG_CONTEXT = 2048
"""From so many cached tokens on, attention itself is worth torch's threads."""

_EXPECTED = 512
"""Tokens that an answer is given room for at first; a longer one moves into a larger cache."""


class Decoder(Protocol):
    """What runs the steps of one sequence."""

    def step(self, token: torch.Tensor) -> torch.Tensor:
        """Run ``token`` ``(1, 1)``; return its logits ``(vocab,)``, valid until the next call."""

    def close(self) -> None:
        """Give back what the next sequence can use."""


class StepDecoder:
    """Runs each step through the model, with torch's threads out of the kernels' way.

    Where compiled kernels with threads of their own do the heavy work, what torch is left with is too
    small to share: waking its threads for each operation costs a third of a step on two cores.
    """

    def __init__(self, model: nn.Module, cache: Any) -> None:
        self._model, self._cache = model, cache
        self._one_thread = _kernels_bring_threads(model)

    def step(self, token: torch.Tensor) -> torch.Tensor:
        """See :class:`Decoder`."""
        if not self._one_thread or self._cache.get_seq_length() >= _LONG_CONTEXT:
            return forward_logits(self._model, token, self._cache)[0, -1]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return forward_logits(self._model, token, self._cache)[0, -1]
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        """See :class:`Decoder`."""


def decoder_for(model: nn.Module, cache: Any, new_tokens: int, *, graph: bool = True) -> Decoder:
    """The quickest decoder that continues ``cache``, which holds the prompt, by ``new_tokens``.

    With ``graph``, a model that is wholly on one GPU decodes by a captured CUDA graph, on a copy of
    ``cache``.
    """
    if graph and torch.cuda.is_available() and model not in _refused:
        try:
            device = graph_device(model, cache)
            return GraphDecoder(model, cache, min(new_tokens, _EXPECTED), device)
        except Unsuitable as reason:
            logger.info("decoding without a CUDA graph: %s", reason)
            if not isinstance(reason.__cause__, torch.OutOfMemoryError):
                _refused[model] = str(reason)  # too long a prompt says nothing of the next one
    return StepDecoder(model, cache)


_refused: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""Models that could not be captured, and why: not tried again at each prompt."""


def _kernels_bring_threads(model: nn.Module) -> bool:
    operators = [module for module in model.modules() if isinstance(module, PhasedOperator)]
    return bool(operators) and all(
        operator.kernels[Phase.DECODE].own_threads for operator in operators
    )
