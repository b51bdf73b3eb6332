"""A kernel of ``kt_core.Linear``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from kt_core.errors import KernelError
from kt_core.operators.kernel import KernelContext, LinearKernel
from kt_core.weights import PackedTensor, TensorInfo

from kt_plugin_template.products import Matrix


class Linear(LinearKernel):
    """Computes in float32, whatever the activations' dtype, and rounds once at the end."""

    graph_safe = True  # nothing waits for a value: on a GPU a captured step may hold it

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """See :class:`kt_core.operators.kernel.Kernel`: what ``kt plan`` counts."""
        return sum(Matrix.resident(info) for info in weights)

    def load(self, weight: PackedTensor, bias: torch.Tensor | None) -> None:
        """Take ``weight`` ``(out_features, in_features)`` and the float32 ``bias``."""
        expected = (self.shape.out_features, self.shape.in_features)
        if weight.shape != expected:
            raise KernelError.of(
                "KT502",
                f"{self.context.name} needs a weight of {list(expected)}, got {list(weight.shape)}",
            )
        self._weight = Matrix(weight, self.context.device)
        self._bias = None if bias is None else bias.to(self.context.device)
        self._chunk = int(self.context.options.get("chunk_tokens", 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``, same dtype."""
        rows = x.reshape(-1, self.shape.in_features)
        y = x.new_empty(rows.shape[0], self.shape.out_features)
        for start in range(0, rows.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            product = self._weight.times(rows[part].float())
            y[part] = product if self._bias is None else product + self._bias
        return y.view(*x.shape[:-1], self.shape.out_features)
