"""A key/value cache layer that appends in place.

transformers' growing cache concatenates at every token, which copies the whole cache each time: at 4,096
tokens of a 30-billion-parameter model that is 400 MB per token. This one keeps room to spare.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_FIRST_ROOM = 256


class AppendingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values ``(batch, heads, tokens, dim)`` are views of larger buffers."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self._room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append, and return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
            self._room = None
        start = self.get_seq_length()
        rooms = self.extend(key_states.shape[-2])
        for room, new in zip(rooms, (key_states, value_states), strict=True):
            room[..., start : start + new.shape[-2], :] = new
        return self.keys, self.values

    def extend(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make ``count`` more tokens part of the cache; their place in the returned buffers is not filled.

        The buffers ``(batch, heads, room, dim)`` hold the layer's tokens first. Only for a layer that
        has seen tokens.
        """
        start = self.get_seq_length()
        end = start + count
        if self._room is None or end > self._room[0].shape[-2] or not self._in_room():
            self._room = (
                self._grown(self.keys, start, end),
                self._grown(self.values, start, end),
            )
        keys, values = self._room
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self._room

    def _in_room(self) -> bool:
        """Whether keys and values are still views of the buffers: beam search, say, exchanges them."""
        return all(
            part.data_ptr() == room.data_ptr() and part.stride() == room.stride()
            for part, room in zip((self.keys, self.values), self._room or (), strict=True)
        )

    @staticmethod
    def _grown(old: torch.Tensor, start: int, end: int) -> torch.Tensor:
        shape = list(old.shape)
        shape[-2] = max(_FIRST_ROOM, end + end // 2)
        room = old.new_empty(shape)
        if start:
            room[..., :start, :] = old
        return room


def appending_cache(config: Any) -> Any:
    """Return transformers' cache for ``config``, its plain layers exchanged for appending ones."""
    cache = DynamicCache(config=config)
    cache.layers = [
        AppendingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache
