"""What the kernel must compute, as plainly as it can be written. For tests, never a fallback."""

from __future__ import annotations

import torch
from kt_core.weights import PackedTensor


def linear(x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias`` in float64, value by value of the dequantised matrix."""
    matrix = torch.from_numpy(weight.dequantize()).double()
    y = torch.stack([(matrix * row).sum(dim=1) for row in x.double().cpu()])
    return y if bias is None else y + bias.double().cpu()
