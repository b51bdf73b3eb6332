"""The ``torch`` kernel of routed experts: the plain loop that every faster kernel is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from kt_core.errors import KernelError
from kt_core.operators.kernel import (
    Activation,
    ExpertsKernel,
    ExpertsWeights,
    KernelContext,
)
from kt_core.weights import PackedTensor, TensorInfo


def gate_and_up(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """``act(gate) * up`` in the inputs' dtype, any shape."""
    if activation.kind == "silu":
        return functional.silu(gate) * up
    if activation.kind == "relu":
        return functional.relu(gate) * up
    if activation.kind == "gelu":
        return functional.gelu(gate) * up
    if activation.kind == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(min=-activation.limit, max=activation.limit)
    return (up + 1) * gate * torch.sigmoid(activation.alpha * gate)


class TorchExperts(ExpertsKernel):
    """Holds every expert dequantised in the activations' dtype and runs those that were chosen."""

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Dequantised size."""
        return sum(info.numel for info in weights) * context.dtype.itemsize

    def load(self, weights: ExpertsWeights) -> None:
        """Dequantise all experts onto the device."""

        def convert(tensors: Sequence[PackedTensor]) -> list[torch.Tensor]:
            context = self.context
            return [tensor.to_torch(context.dtype, context.device) for tensor in tensors]

        def place(bias: torch.Tensor | None) -> torch.Tensor | None:
            return None if bias is None else bias.to(self.context.device, self.context.dtype)

        self._gate, self._up, self._down = map(convert, (weights.gate, weights.up, weights.down))
        self._gate_bias, self._up_bias, self._down_bias = map(
            place, (weights.gate_bias, weights.up_bias, weights.down_bias)
        )

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """See :meth:`kt_core.operators.kernel.ExpertsKernel.forward`."""
        output = torch.zeros_like(hidden_states)
        for expert in torch.unique(top_k_index).tolist():
            if expert == -1:
                continue
            if not 0 <= expert < self.shape.num_experts:
                raise KernelError.of(
                    "KT503",
                    f"{self.context.name} was asked for expert {expert}",
                    facts=[f"it has {self.shape.num_experts} experts, counted from 0"],
                )
            token, position = torch.where(top_k_index == expert)
            x = hidden_states[token]
            gate = functional.linear(x, self._gate[expert], _row(self._gate_bias, expert))
            up = functional.linear(x, self._up[expert], _row(self._up_bias, expert))
            inner = gate_and_up(gate, up, self.activation)
            y = functional.linear(inner, self._down[expert], _row(self._down_bias, expert))
            y = y * top_k_weights[token, position, None]
            output.index_add_(0, token, y.to(output.dtype))
        return output


def _row(bias: torch.Tensor | None, expert: int) -> torch.Tensor | None:
    return None if bias is None else bias[expert]
