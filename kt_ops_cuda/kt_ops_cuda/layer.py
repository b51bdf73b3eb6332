"""``kt_ops_cuda.DecoderLayer``: the sum after attention and the norm behind it in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext
from kt_ops_cuda import decode_ops
from kt_ops_cuda.fused import with_forward
from kt_ops_cuda.linear import COMPUTE_DTYPES
from kt_ops_cuda.norm import RMSNorm


class DecoderLayer(Operator):
    """Stands for transformers' layers of Llama's kind: norm, attention, sum, norm, MLP, sum."""

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return ``original`` with the fused sum."""
        return with_forward(original, _FusedSum)  # type: ignore[no-any-return]

    def load(self, weights: ModuleWeights) -> None:
        """Never called: the children are loaded like any other modules."""


class _FusedSum(nn.Module):
    """The forward that is put before the original's."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the original's, with the arguments that transformers' models give."""
        own: Any = self
        norm = own.post_attention_layernorm
        if (
            args
            or not isinstance(norm, RMSNorm)
            or not hidden_states.is_cuda
            or hidden_states.dtype not in COMPUTE_DTYPES
            or not hidden_states.numel()
        ):
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        normed = own.input_layernorm(hidden_states)
        attended, _ = own.self_attn(hidden_states=normed, **kwargs)
        total, normed = decode_ops.add_rms_norm(
            attended, hidden_states, norm.weight, norm.variance_epsilon, norm.offset
        )
        return total + own.mlp(normed)
