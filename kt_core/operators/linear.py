"""``kt_core.Linear``: a linear layer whose two phases may run on different kernels and devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.errors import KernelError
from kt_core.operators.host import host_calls
from kt_core.operators.kernel import LinearShape
from kt_core.operators.operator import ModuleWeights, OperatorContext, PhasedOperator


class Linear(PhasedOperator):
    """Stands for ``torch.nn.Linear`` and computes the same function of ``(..., in_features)``."""

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        shape = self.kernel_shape(original, context.config)
        self.in_features, self.out_features = shape.in_features, shape.out_features
        self._has_bias = getattr(original, "bias", None) is not None
        self.build_kernels(shape)

    @classmethod
    def kernel_shape(cls, original: nn.Module, config: Any) -> LinearShape:
        """Read the two sizes off the module."""
        return LinearShape(int(original.in_features), int(original.out_features))  # type: ignore[arg-type]

    def load(self, weights: ModuleWeights) -> None:
        """Give every kernel the weight and, where the layer has one, the bias."""
        weight = weights.packed("weight")
        stored_bias = weights.packed("bias") if self._has_bias else None
        if weight is None or (self._has_bias and stored_bias is None):
            raise KernelError.of("KT501", f"{self.context.path} was given no weights")
        bias = None if stored_bias is None else stored_bias.to_torch(torch.float32)
        self.load_kernels(lambda kernel: kernel.load(weight, bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the phase that the number of tokens in ``x`` calls for."""
        kernel = self.kernel_for(x.numel() // self.in_features)
        device = kernel.context.device
        home = self.context.out_device or x.device
        host = host_calls(device, x)
        if host is not None:
            return host.call(kernel.forward, (x,))
        if x.device != device:
            x = x.to(device)
        y: torch.Tensor = kernel.forward(x)
        return y if y.device == home else y.to(home)
