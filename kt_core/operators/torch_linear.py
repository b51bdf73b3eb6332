"""The ``torch`` kernel of a linear layer: weights dequantised once, computed by the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional

from kt_core.errors import KernelError
from kt_core.operators.kernel import KernelContext, LinearKernel, LinearShape
from kt_core.weights import PackedTensor, TensorInfo


class TorchLinear(LinearKernel):
    """Holds ``(out_features, in_features)`` in the activations' dtype on any torch device."""

    graph_safe: ClassVar[bool] = True

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Dequantised size."""
        return sum(info.numel for info in weights) * context.dtype.itemsize

    def load(self, weight: PackedTensor, bias: torch.Tensor | None) -> None:
        """Dequantise onto the device."""
        expected = (self.shape.out_features, self.shape.in_features)
        if weight.shape != expected:
            raise KernelError.of(
                "KT502",
                f"{self.context.name} needs a weight of {list(expected)}, got {list(weight.shape)}",
            )
        self.weight = weight.to_torch(self.context.dtype, self.context.device)
        self.bias = None if bias is None else bias.to(self.context.device, self.context.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T + bias``."""
        return functional.linear(x, self.weight, self.bias)


__all__ = ["LinearShape", "TorchLinear"]
