"""What the kernel must compute, as plainly as it can be written. For tests, never a fallback."""

from __future__ import annotations

import torch
from kt_core.operators.kernel import ExpertsWeights


def experts(
    x: torch.Tensor, index: torch.Tensor, share: torch.Tensor, weights: ExpertsWeights
) -> torch.Tensor:
    """Sum ``share * down(silu(gate x) * up x)`` over each token's experts, in float64."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(x.double().cpu()):
        for expert, weight in zip(index[token].tolist(), share[token].tolist(), strict=True):
            if expert == -1:
                continue
            gate, up, down = (
                torch.from_numpy(part[expert].dequantize()).double()
                for part in (weights.gate, weights.up, weights.down)
            )
            g = gate @ row
            y[token] += weight * (down @ (g * torch.sigmoid(g) * (up @ row)))
    return y
