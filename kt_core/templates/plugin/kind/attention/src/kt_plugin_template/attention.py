"""A module operator: what takes the place of a whole attention module."""

from __future__ import annotations

from typing import Any

import torch
from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext
from torch import nn

from kt_plugin_template.products import attend


class Attention(Operator):
    """Grouped-query attention with rotary embedding; the projections stay modules of their own.

    They keep their names, so that other rules still find them and their weights are loaded as ever.
    """

    keeps_shape = True

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        self.q_proj, self.k_proj = original.q_proj, original.k_proj
        self.v_proj, self.o_proj = original.v_proj, original.o_proj
        self.layer_idx: Any = original.layer_idx
        self.head_dim: Any = original.head_dim
        self.scaling: Any = original.scaling
        self._rows = int(context.kwargs.get("block_rows", 256))

    def load(self, weights: ModuleWeights) -> None:
        """Nothing to take: the weights belong to the projections."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,  # what transformers before 5.20 calls the cache
        **unused: Any,
    ) -> tuple[torch.Tensor, None]:
        """Map ``(1, n, hidden)`` to the same shape. A mask is true, or 0, where a key is seen."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            projection(hidden_states).view(heads).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = (part.unsqueeze(1) for part in position_embeddings)
        query, key = (part * cos + _rotated(part) * sin for part in (query, key))
        cache = cache if cache is not None else past_key_values
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        y = torch.cat(
            [
                attend(query[:, :, start : start + self._rows], key, value, mask, self.scaling)
                for start, mask in self._masks(query.shape[2], key.shape[2], attention_mask)
            ],
            dim=2,
        )
        return self.o_proj(y.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)), None

    def _masks(
        self, rows: int, columns: int, mask: torch.Tensor | None
    ) -> list[tuple[int, torch.Tensor | None]]:
        """Begin and mask of each block of rows; without a mask a row sees no later key."""
        blocks = []
        for start in range(0, rows, self._rows):
            stop = min(rows, start + self._rows)
            if mask is not None:
                part = mask[:, :, start:stop, :columns]
            elif rows == 1:
                part = None
            else:
                keys = torch.arange(columns)
                part = keys <= torch.arange(columns - rows + start, columns - rows + stop)[:, None]
            blocks.append((start, part))
        return blocks


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """The second half of each head, negated, before the first."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
