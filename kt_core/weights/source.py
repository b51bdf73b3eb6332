"""What the rest of kt sees of a weight file, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from kt_core.errors import Problem
from kt_core.weights.tensor import PackedTensor, TensorInfo


@runtime_checkable
class WeightSource(Protocol):
    """A validated set of named tensors (one GGUF file, a split set, safetensors).

    Opening proves every count, offset and size against the files; nothing is allocated by a number
    that was not checked. ``metadata`` is the file's key/value part (for safetensors the texts of
    its ``__metadata__``); texts and arrays in it are read on first access. Use it as a context
    manager, or call :meth:`close`; views handed out stay valid until they are collected.
    """

    @property
    def path(self) -> str:
        """The path it was opened with."""

    @property
    def format(self) -> str:
        """``"gguf"`` or ``"safetensors"``."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key/value metadata as Python values."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name, in file order."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files it reads, in the order of the set."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Warnings and notes found at opening, such as files that were ignored."""

    def tensor(self, name: str) -> PackedTensor:
        """Return a view of one tensor; raises ``WeightsError`` KT410 if it is absent."""

    def close(self) -> None:
        """Release the files."""
