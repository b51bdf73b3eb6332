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


ROWS = "rows"
"""Each expert's weights are ``(out, in)``; a fused gate and up stand one above the other."""

COLUMNS = "columns"
"""transformers' gpt-oss: weights are ``(in, out)``, and gate and up columns alternate."""


@dataclass(frozen=True)
class ExpertsBinding:
    """The stored tensors of a layer's experts: one stacked name each, or one name per expert.

    Where a file stores gate and up as one tensor, only ``gate_up`` is set, not ``gate`` and ``up``.
    The same goes for the biases, which most families do not have. ``layout`` is :data:`ROWS` or
    :data:`COLUMNS`.
    """

    gate: tuple[str, ...] = ()
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    gate_up: tuple[str, ...] = ()
    gate_bias: tuple[str, ...] = ()
    up_bias: tuple[str, ...] = ()
    down_bias: tuple[str, ...] = ()
    gate_up_bias: tuple[str, ...] = ()
    layout: str = ROWS

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the matrices."""
        return (*self.gate, *self.up, *self.gate_up, *self.down)

    @property
    def biases(self) -> tuple[str, ...]:
        """Names of the biases."""
        return (*self.gate_bias, *self.up_bias, *self.gate_up_bias, *self.down_bias)

    @property
    def tensors(self) -> tuple[str, ...]:
        """All names."""
        return self.weights + self.biases
