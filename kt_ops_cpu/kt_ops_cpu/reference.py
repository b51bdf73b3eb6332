"""What the kernels must compute, written down plainly: the oracle of the tests, never a fallback.

Weights are dequantised with ``gguf`` and multiplied in float64 or float32. Nothing here touches the
native library.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from kt_core.operators.kernel import Activation, ExpertsWeights
from kt_core.weights import PackedTensor, QuantType


def dequantize(weight: PackedTensor) -> torch.Tensor:
    """Return the weight as float32, by ``gguf``'s own routines."""
    import gguf

    kind = gguf.GGMLQuantizationType[weight.type.value]
    data = np.ascontiguousarray(weight.data)
    if weight.type in (QuantType.F32, QuantType.F16):
        values = data.view(np.float32 if weight.type is QuantType.F32 else np.float16)
    else:
        values = gguf.dequantize(data, kind)
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def linear(x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias`` in float64."""
    y = x.double() @ dequantize(weight).double().T
    return y if bias is None else y + bias.double()


def gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """``act(gate) * up`` in the inputs' dtype."""
    if activation.kind == "silu":
        return functional.silu(gate) * up
    if activation.kind in ("gelu", "gelu_tanh"):
        form = "tanh" if activation.kind == "gelu_tanh" else "none"
        return functional.gelu(gate, approximate=form) * up
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(-activation.limit, activation.limit)
    return (up + 1) * gate * torch.sigmoid(activation.alpha * gate)


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    weights: ExpertsWeights,
    activation: Activation,
) -> torch.Tensor:
    """The weighted sum over each token's experts, token by token, in float64."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for expert in sorted(set(ids.flatten().tolist()) - {-1}):
        token, choice = torch.where(ids == expert)
        rows = x[token]

        def bias(values: torch.Tensor | None, expert: int = expert) -> torch.Tensor | None:
            return None if values is None else values[expert]

        gate = linear(rows, weights.gate[expert], bias(weights.gate_bias))
        up = linear(rows, weights.up[expert], bias(weights.up_bias))
        inner = gated(gate, up, activation)
        out = linear(inner, weights.down[expert], bias(weights.down_bias))
        y.index_add_(0, token, out * scores[token, choice, None].double())
    return y
