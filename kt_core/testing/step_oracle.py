"""What the kernels of :class:`kt_core.operators.fused.StepKernels` compute, in float64."""

from __future__ import annotations

import torch


def norm_oracle(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * (offset + weight)`` over the last dimension."""
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (offset + weight.double())


def head_oracle(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Heads ``(heads, dim)``: normalised where there is a weight, the first ``rotary`` values rotated.

    ``angles`` are cosine and sine ``(rotary,)``; value i turns with value i + rotary / 2.
    """
    x = x.double() if weight is None else norm_oracle(x, weight, eps)
    cosine, sine = (angle.double() for angle in angles)
    width = cosine.shape[-1]
    turned, kept = x[..., :width], x[..., width:]
    half = torch.cat([-turned[..., width // 2 :], turned[..., : width // 2]], -1)
    return torch.cat([turned * cosine + half * sine, kept], -1)


def attention_oracle(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int, scale: float
) -> torch.Tensor:
    """One token's heads ``(heads, dim)`` over ``(kv_heads, tokens, dim)``, the last ``window`` of them.

    Returns ``(1, 1, heads * dim)``. A window of 0 is all tokens.
    """
    seen = slice(max(0, keys.shape[1] - window) if window else 0, None)
    group = queries.view(keys.shape[0], -1, keys.shape[2])
    scores = group @ keys[:, seen].double().transpose(1, 2) * scale
    return (scores.softmax(-1) @ values[:, seen].double()).reshape(1, 1, -1)
