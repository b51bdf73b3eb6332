"""Attention of queries to keys and values: replace this by something faster."""

from __future__ import annotations

import torch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Map ``query`` ``(1, heads, n, d)`` to ``(1, heads, n, d)``; scores are float32.

    ``key`` and ``value`` are ``(1, kv_heads, m, d)`` with ``heads`` a multiple of ``kv_heads``.
    ``mask`` broadcasts to ``(1, heads, n, m)``: boolean, true where a key is seen, or added.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    scores = (query @ key.transpose(-1, -2)).float() * scaling
    if mask is not None:
        mask = mask.to(scores.device)
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    return scores.softmax(dim=-1).to(value.dtype) @ value
