"""A kernel of ``kt_core.Experts``: the chosen experts one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from kt_core.operators.kernel import ExpertsKernel, ExpertsWeights, KernelContext
from kt_core.weights import TensorInfo
from torch.nn import functional

from kt_plugin_template.layer import check_ids, check_layer
from kt_plugin_template.products import Matrix


class Experts(ExpertsKernel):
    """Computes in float32, whatever the activations' dtype, and rounds once at the end."""

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """See :class:`kt_core.operators.kernel.Kernel`: what ``kt plan`` counts."""
        return sum(Matrix.resident(info) for info in weights)

    def load(self, weights: ExpertsWeights) -> None:
        """Take the weights of every expert."""
        check_layer(self.context.name, self.shape, self.activation, weights)
        self._gate, self._up, self._down = (
            [Matrix(tensor, self.context.device) for tensor in part]
            for part in (weights.gate, weights.up, weights.down)
        )
        self._chunk = int(self.context.options.get("chunk_tokens", 512))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Map ``(tokens, hidden)`` to the weighted sum over each token's experts."""
        check_ids(self.context.name, top_k_index, self.shape.num_experts)
        y = torch.zeros_like(hidden_states, dtype=torch.float32)
        for start in range(0, hidden_states.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            self._add(y[part], hidden_states[part].float(), top_k_index[part], top_k_weights[part])
        return y.to(hidden_states.dtype)

    def _add(
        self, y: torch.Tensor, x: torch.Tensor, index: torch.Tensor, share: torch.Tensor
    ) -> None:
        for expert in torch.unique(index).tolist():
            if expert == -1:
                continue
            token, position = torch.where(index == expert)
            rows = x[token]
            gate, up = self._gate[expert].times(rows), self._up[expert].times(rows)
            result = self._down[expert].times(functional.silu(gate) * up)
            y.index_add_(0, token, result * share[token, position, None].float())
