"""What the kernels must compute, written down plainly: the oracle of the tests, never a fallback.

Weights are dequantised with ``gguf`` and multiplied in float64 or float32. Nothing here touches the
native library.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from kt_core.operators.kernel import Activation, ExpertsWeights
from kt_core.weights import LAYOUTS, PackedTensor, QuantType


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


Product = Callable[[torch.Tensor, PackedTensor, torch.Tensor | None], torch.Tensor]


def rounded(x: torch.Tensor, weight: PackedTensor, bits: int = 8) -> torch.Tensor:
    """Round activations as the kernels do before they meet ``weight``, in float64.

    To 8 bits with one scale per 256 values for K-quants and IQ types, per 32 for other block types; to
    bfloat16 for BF16; not at all for F32 and F16. ``bits=16`` adds what that left over, rounded in
    the same way.
    """
    size = LAYOUTS[weight.type].block_size
    if size == 1 and weight.type is not QuantType.BF16:
        return x.double()
    first = _rounded_once(x.float(), size)
    if bits == 8:
        return first
    return first + _rounded_once((x.float() - first).float(), size)


def _rounded_once(x: torch.Tensor, size: int) -> torch.Tensor:
    if size == 1:
        return x.to(torch.bfloat16).double()
    blocks = functional.pad(x, (0, -x.shape[1] % size)).reshape(len(x), -1, size)
    most = blocks.abs().amax(2, keepdim=True)
    inverse = torch.where(most > 0, 127 / most, 0)
    values = (blocks * inverse).round().double() * (most / 127).double()
    result: torch.Tensor = values.flatten(1)[:, : x.shape[1]]
    return result


def rounded_linear(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None, bits: int = 8
) -> torch.Tensor:
    """What the kernels compute but for the rounding of sums: :func:`linear` of :func:`rounded`."""
    return linear(rounded(x, weight, bits), weight, bias)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """``act(gate) * up`` in the inputs' dtype."""
    if activation.kind == "silu":
        return functional.silu(gate) * up
    if activation.kind == "relu":
        return functional.relu(gate) * up
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
    product: Product = linear,
) -> torch.Tensor:
    """The weighted sum over each token's experts, in float64; ``product`` is how layers multiply."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for expert in sorted(set(ids.flatten().tolist()) - {-1}):
        token, choice = torch.where(ids == expert)
        rows = x[token]

        def bias(values: torch.Tensor | None, expert: int = expert) -> torch.Tensor | None:
            return None if values is None else values[expert]

        gate = product(rows, weights.gate[expert], bias(weights.gate_bias))
        up = product(rows, weights.up[expert], bias(weights.up_bias))
        inner = gated(gate, up, activation)
        out = product(inner, weights.down[expert], bias(weights.down_bias))
        y.index_add_(0, token, out * scores[token, choice, None].double())
    return y
