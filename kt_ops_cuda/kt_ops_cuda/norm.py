"""``kt_ops_cuda.RMSNorm``: a root mean square norm in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext
from kt_ops_cuda import decode_ops
from kt_ops_cuda.linear import COMPUTE_DTYPES


class RMSNorm(Operator):
    """Stands for transformers' norms ``(…, hidden)``; sums in float32 and rounds once."""

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        source: Any = original
        self.weight = source.weight
        self.variance_epsilon = float(getattr(source, "variance_epsilon", 0.0) or source.eps)
        # Gemma stores the distance from one.
        self.offset = 1.0 if "Gemma" in type(original).__name__ else 0.0

    def load(self, weights: ModuleWeights) -> None:
        """Take the weight in the activations' dtype."""
        stored = weights.packed("weight")
        if stored is not None:
            value = stored.to_torch(self.context.dtype, self.context.device)
            self.weight = nn.Parameter(value, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        weight = self.weight
        if (
            x.is_cuda
            and x.dtype in COMPUTE_DTYPES
            and x.shape[-1] % 8 == 0 == x.numel() % 8
            and x.numel()
        ):
            y: torch.Tensor = decode_ops.rms_norm(x, weight, self.variance_epsilon, self.offset)
            return y
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (self.offset + weight.float())).to(x.dtype)

    def extra_repr(self) -> str:
        """As transformers prints it."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"
