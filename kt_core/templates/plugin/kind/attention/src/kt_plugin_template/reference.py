"""What ``attend`` must compute, as plainly as it can be written. For tests, never a fallback."""

from __future__ import annotations

import math

import torch


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, scaling: float
) -> torch.Tensor:
    """One head and one query at a time; ``seen`` ``(n, m)`` is true where a key is seen."""
    y = torch.zeros(query.shape, dtype=torch.float64)
    groups = query.shape[1] // key.shape[1]
    for head in range(query.shape[1]):
        for row in range(query.shape[2]):
            keys = [k for k in range(key.shape[2]) if seen[row, k]]
            scores = [
                math.exp(scaling * float(query[0, head, row] @ key[0, head // groups, k]))
                for k in keys
            ]
            for k, score in zip(keys, scores, strict=True):
                y[0, head, row] += score / sum(scores) * value[0, head // groups, k].double()
    return y
