"""``kt_ops_cuda.Router``: a softmax router's choice for a few tokens in two launches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext
from kt_ops_cuda import decode_ops
from kt_ops_cuda.fused import with_forward
from kt_ops_cuda.linear import COMPUTE_DTYPES

MOST_TOKENS = 8
"""From more tokens on, the library's matmul reads the weight fewer times."""


class Router(Operator):
    """Stands for transformers' softmax routers: ``(tokens, hidden)`` to logits, weights and ids.

    The weight keeps the dtype it has. Logits are summed and compared in float32.
    """

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return ``original`` with the fused choice, or as it is where the kernel does not cover it."""
        source: Any = original
        experts, hidden = source.weight.shape
        covered = experts <= decode_ops.MOST_EXPERTS and hidden % 8 == 0
        return with_forward(original, _FusedChoice) if covered else original  # type: ignore[no-any-return]

    def load(self, weights: ModuleWeights) -> None:
        """Never called: the weight is loaded like any other module's."""


class _FusedChoice(nn.Module):
    """The forward that is put before the original's."""

    def forward(self, hidden_states: torch.Tensor) -> Any:
        """Logits ``(tokens, experts)``, weights and ids ``(tokens, top_k)``."""
        own: Any = self
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        if (
            not 0 < x.shape[0] <= MOST_TOKENS
            or not x.is_cuda
            or x.dtype not in COMPUTE_DTYPES
            or own.weight.dtype != x.dtype
        ):
            return super().forward(hidden_states)  # type: ignore[misc]
        # Mixtral always divides by the sum and has no switch for it.
        return decode_ops.router(
            x, own.weight, own.top_k, bool(getattr(own, "norm_topk_prob", True))
        )
