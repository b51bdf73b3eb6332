"""One decoding step, with torch's threads out of the kernels' way."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from kt_core.models.hf import forward_logits
from kt_core.operators.operator import Phase, PhasedOperator

_LONG_CONTEXT = 2048
"""From so many cached tokens on, attention itself is worth torch's threads."""


def decode_step(model: nn.Module, token: torch.Tensor, cache: Any) -> torch.Tensor:
    """Run ``token`` ``(1, 1)``; return its logits ``(1, 1, vocab)``.

    Where compiled kernels with threads of their own do the heavy work, what torch is left with is too
    small to share: waking its threads for each operation costs a third of a step on two cores.
    """
    if not _kernels_bring_threads(model) or cache.get_seq_length() >= _LONG_CONTEXT:
        return forward_logits(model, token, cache)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return forward_logits(model, token, cache)
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=4)
def _kernels_bring_threads(model: nn.Module) -> bool:
    operators = [module for module in model.modules() if isinstance(module, PhasedOperator)]
    return bool(operators) and all(
        operator.kernels[Phase.DECODE].own_threads for operator in operators
    )
