"""What the two kernels make of the options that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FEW_TOKENS = 4
"""Calls of at most so many tokens wait for memory: ``decode_activation_bits`` holds for them."""


def always_split(options: Mapping[str, Any]) -> bool:
    """Whether calls of any number of tokens round their activations to 16 bits."""
    split = split_from(options)
    return split(1) and split(FEW_TOKENS + 1)


def split_from(options: Mapping[str, Any]) -> Callable[[int], bool]:
    """Return whether a call of so many tokens rounds its activations to 16 bits, not to 8."""
    many = options.get("activation_bits", 8) == 16
    few = options.get("decode_activation_bits", 16 if many else 8) == 16
    return lambda tokens: few if tokens <= FEW_TOKENS else many
