"""What a plan asks before anything is loaded: can it be served, and how large will it be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kt_core.operators.kernel import ExpertsShape, LinearShape
from kt_core.weights import TensorInfo
from kt_core.weights.types import DEQUANTIZABLE

_PANEL = 64
_LARGEST = 1 << 24


def experts_reasons(
    shape: ExpertsShape, weights: Sequence[TensorInfo], options: Mapping[str, Any]
) -> list[str]:
    """Return why a layer cannot be served, empty if it can."""
    sizes = {"hidden": shape.hidden_size, "intermediate": shape.intermediate_size}
    return [*_size_reasons(sizes), *_type_reasons(weights)]


def linear_reasons(
    shape: LinearShape, weights: Sequence[TensorInfo], options: Mapping[str, Any]
) -> list[str]:
    """Return why a linear layer cannot be served, empty if it can."""
    sizes = {"input": shape.in_features, "output": shape.out_features}
    return [*_size_reasons(sizes), *_type_reasons(weights)]


def experts_bytes(shape: ExpertsShape, options: Mapping[str, Any]) -> int:
    """Return the bytes of a loaded layer."""
    inter, hidden = _padded(shape.intermediate_size), _padded(shape.hidden_size)
    group = int(options.get("group_size", 0))
    one = matrix_bytes(2 * inter, hidden, group) + matrix_bytes(hidden, inter, group)
    return shape.num_experts * one


def linear_bytes(shape: LinearShape, options: Mapping[str, Any]) -> int:
    """Return the bytes of a loaded linear layer, its bias not counted."""
    return matrix_bytes(
        _padded(shape.out_features), _padded(shape.in_features), int(options.get("group_size", 0))
    )


def matrix_bytes(columns: int, depth: int, group: int) -> int:
    """Return the bytes of one matrix: a byte a weight; per column and group a sum and a scale."""
    groups = 1 if group == 0 else (depth + group - 1) // group
    return columns * depth + groups * columns * (4 + 4)


def _padded(size: int) -> int:
    return (size + _PANEL - 1) // _PANEL * _PANEL


def _size_reasons(sizes: Mapping[str, int]) -> list[str]:
    return [
        f"the {what} size {size} is not between 1 and {_LARGEST}"
        for what, size in sizes.items()
        if not 1 <= size <= _LARGEST
    ]


def _type_reasons(weights: Sequence[TensorInfo]) -> list[str]:
    unknown = sorted({str(info.type) for info in weights if info.type not in DEQUANTIZABLE})
    return [f"weights stored as {name} cannot be turned into numbers" for name in unknown]
