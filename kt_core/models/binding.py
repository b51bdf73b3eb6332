"""How one parameter of a transformers module is made of the tensors in a file. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Binding:
    """``parameter`` (dotted, as in ``state_dict``) = ``transform(*tensors, **args)``.

    ``tensors`` are names in the weight file. ``transform`` is a key of
    :data:`kt_core.models.transforms.TRANSFORMS`.
    """

    parameter: str
    tensors: tuple[str, ...]
    transform: str = "as_is"
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpertsBinding:
    """The stored tensors of a layer's experts: one stacked name each, or one name per expert.

    ``gate_up`` is set, and ``gate`` and ``up`` are empty, where a file stores the two as one tensor
    whose second dimension is gate rows followed by up rows.
    """

    gate: tuple[str, ...] = ()
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    gate_up: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """All names."""
        return (*self.gate, *self.up, *self.gate_up, *self.down)
