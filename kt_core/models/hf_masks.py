"""The mask of one attention layer for a chunk of a prompt that the other layers are not at yet."""

from __future__ import annotations

from typing import Any

import torch


def chunk_mask(attention: Any, cache: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Return which cached tokens the ``n`` new ones see, ``(1, 1, n, m)``, before they are cached.

    ``cache`` is the layer's own part of transformers' cache, ``hidden_states`` ``(1, n, hidden)``. Boolean
    (true: visible); for ``eager`` attention what is added to the scores.
    """
    count, device = hidden_states.shape[1], hidden_states.device
    length, offset = cache.get_mask_sizes(count)
    seen = int(cache.get_seq_length())
    query = torch.arange(seen, seen + count, device=device)[:, None]
    key = torch.arange(offset, offset + length, device=device)[None]
    visible = key <= query
    window = getattr(attention, "sliding_window", None)
    if window is not None:
        visible &= key > query - window
    if attention.config._attn_implementation != "eager":
        return visible[None, None]
    lowest = torch.finfo(hidden_states.dtype).min
    hidden = torch.zeros(visible.shape, dtype=hidden_states.dtype, device=device)
    return hidden.masked_fill_(~visible, lowest)[None, None]
