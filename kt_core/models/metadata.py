"""Typed access to a model file's metadata, with one coded error for whatever is wrong in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kt_core.errors import WeightsError

_LARGEST_COUNT = 1 << 24
"""No hyperparameter of a real model (layers, width, vocabulary, experts) comes near 16 million."""


def _as_written(value: float) -> float:
    """Files hold float32: return the decimal it came from, ``1e-06``, not ``9.99999997e-07``."""
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value


class Metadata:
    """The keys of one architecture, e.g. ``llama.block_count`` as ``count("block_count")``."""

    def __init__(self, values: Mapping[str, Any], architecture: str, path: str) -> None:
        self.values = values
        self.architecture = architecture
        self.path = path

    def has(self, key: str) -> bool:
        """Whether ``<architecture>.<key>`` is there."""
        return self._full(key) in self.values

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "must be a whole number")
        if not least <= value <= _LARGEST_COUNT:
            raise self._wrong(key, value, f"must lie between {least} and {_LARGEST_COUNT}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite, positive number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "must be a number")
        if not 0 < float(value) < float("inf"):
            raise self._wrong(key, value, "must be positive and finite")
        return _as_written(float(value))

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "must be true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "must be a string")
        return value

    def counts(self, key: str, length: int, default: int | None = None) -> list[int]:
        """A whole number per layer; one number stands for all of them."""
        value = self._value(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = list(value)
            if len(items) < length or any(
                isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in items
            ):
                raise self._wrong(key, f"{len(items)} items", f"must hold {length} whole numbers")
            return items[:length]
        return [self.count(key, default, least=0)] * length

    def wrong(self, key: str, why: str) -> WeightsError:
        """The error for a key whose value does not fit another one."""
        return self._wrong(key, self.values.get(self._full(key)), why)

    def choice(self, key: str, known: Mapping[int, str], default: str) -> str:
        """A number that stands for a word."""
        value = self._value(key, -1)
        if value == -1:
            return default
        if isinstance(value, bool) or value not in known:
            words = ", ".join(f"{number} ({word})" for number, word in known.items())
            raise self._wrong(key, value, f"must be one of {words}")
        return known[value]

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(self._full(key), default)
        if value is None:
            raise WeightsError.of(
                "KT460",
                f'{self.path} has no "{self._full(key)}" in its metadata',
                facts=[f"architecture: {self.architecture}"],
                help="convert the model again with a current converter, or give a folder with its "
                "config.json: --model DIR",
            )
        return value

    def _wrong(self, key: str, value: Any, why: str) -> WeightsError:
        return WeightsError.of(
            "KT461",
            f'{self.path}: "{self._full(key)}" {why}, found {value!r:.80}',
            help="the file is damaged or was written by a faulty converter; get it again",
        )
