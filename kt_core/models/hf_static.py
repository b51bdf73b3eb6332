"""A key/value cache of fixed size at fixed addresses, which a captured decode step can write to.

transformers' own static layers each keep their length; here all layers share one position on the
device, moved once per step, so that a layer's update is two writes and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticLayer

from kt_core.models.hf_cache import AppendingLayer


class FixedLayer(StaticLayer):  # type: ignore[misc]
    """Keys and values ``(1, heads, room, dim)``, written at ``position`` ``(1,)`` int64."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor) -> None:
        super().__init__(max_cache_len=keys.shape[-2])
        self.keys, self.values, self.position = keys, values, position
        self.device, self.dtype = keys.device, keys.dtype
        self.is_initialized = True
        self.scratch: Any = None
        """What an attention kernel wants to find again at the next token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token's keys and values ``(1, heads, 1, dim)``; return all, unused room included."""
        self.keys.index_copy_(2, self.position, key_states)
        self.values.index_copy_(2, self.position, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Tokens so far, as the shared tensor: reading it would stop a capture."""
        return self.position

    def take(self, keys: torch.Tensor, values: torch.Tensor, end: int) -> None:
        """Copy ``keys`` and ``values``, whose last token has position ``end - 1``."""
        for own, given in ((self.keys, keys), (self.values, values)):
            own[..., end - given.shape[-2] : end, :] = given


class FixedCache(Cache):  # type: ignore[misc]
    """Layers of ``room`` tokens and the position they share."""

    def __init__(self, layers: list[FixedLayer], position: torch.Tensor, room: int) -> None:
        super().__init__(layers=layers)
        self.position = position
        self.room = room

    @classmethod
    def like(cls, cache: Any, room: int) -> FixedCache:
        """Return an empty one with the shapes of ``cache``, which has seen at least one token."""
        position = torch.zeros(1, dtype=torch.int64, device=cache.layers[0].keys.device)
        layers = []
        for layer in cache.layers:
            keys, values = (
                part.new_zeros((*part.shape[:-2], room, part.shape[-1]))
                for part in (layer.keys, layer.values)
            )
            layers.append(FixedLayer(keys, values, position))
        return cls(layers, position, room)

    def take(self, cache: Any) -> None:
        """Continue where ``cache`` (growing or fixed, at most ``room`` tokens) has got to."""
        end = int(cache.get_seq_length())
        for own, given in zip(self.layers, cache.layers, strict=True):
            keys, values = given.keys, given.values
            if isinstance(given, FixedLayer):
                keys, values = keys[..., :end, :], values[..., :end, :]
            own.take(keys, values, end)
        self.position.fill_(end)


def can_be_fixed(cache: Any) -> bool:
    """Whether every layer of ``cache`` is plain keys and values, all tokens or a window of them."""
    return all(
        type(layer) in (AppendingLayer, DynamicSlidingWindowLayer, FixedLayer)
        for layer in cache.layers
    )
