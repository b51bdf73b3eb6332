"""Two results of the same thing: how far apart, in what way, and whether that is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

OK, SUSPECT, BROKEN = "ok", "suspect", "broken"
VERDICTS = (OK, SUSPECT, BROKEN)
"""From good to bad."""

BROKEN_BEYOND = 4.0
"""More than so many times the bound cannot be rounding."""

_COLUMN_BEYOND = 8.0
# An error of one output among thousands hardly shows in the whole; its own may be this many bounds.
_COLUMN_LEAST = 0.05
# … but another output's values, or none, are off by as much as the right ones are large, or more.
_COLUMN_MOST = 0.7


@dataclass(frozen=True)
class Bound:
    """The relative difference that is allowed, and why so much."""

    relative: float
    why: str


DTYPE_BOUNDS: Mapping[str, Bound] = {
    # float32 keeps 24 bits; sums of thousands of products in another order lose a few of them.
    "float32": Bound(1e-4, "float32 sums in another order"),
    # Weights, inputs and results are rounded to 8 and 11 bits: 2**-8 and 2**-11, with room for sums.
    "bfloat16": Bound(0.015, "weights and results rounded to bfloat16"),
    "float16": Bound(0.003, "weights and results rounded to float16"),
}


@dataclass(frozen=True)
class Difference:
    """``found`` against ``expected``, both as rows of features, one row per token.

    ``relative``: root mean square of the difference over that of ``expected``; ``typical`` and
    ``worst`` the median and the largest of the same per row. ``scale`` is the factor between the
    two that fits best. ``missing`` counts values that are not finite though expected so.
    """

    relative: float
    typical: float
    worst: float
    worst_row: int
    scale: float
    missing: int
    first_missing: int
    both_missing: int


def difference(found: torch.Tensor, expected: torch.Tensor) -> Difference:
    """Compare two tensors of the same number of values; the last dimension is the features'."""
    a, b = _rows(found), _rows(expected)
    bad_a, bad_b = ~torch.isfinite(a), ~torch.isfinite(b)
    missing = bad_a & ~bad_b
    first = int(missing.any(dim=1).nonzero()[0]) if missing.any() else -1
    usable = ~(bad_a | bad_b)
    a, b = torch.where(usable, a, 0.0), torch.where(usable, b, 0.0)
    apart = (a - b).norm(dim=1)
    size = b.norm(dim=1)
    whole = float(size.square().sum().sqrt())
    # A row that is nearly zero is held against the usual size of a row.
    floor = max(whole / math.sqrt(max(len(b), 1)) * 1e-3, 1e-30)
    each = apart / size.clamp(min=floor)
    product = float((a * b).sum())
    return Difference(
        relative=float(apart.square().sum().sqrt()) / max(whole, 1e-30),
        typical=float(each.median()) if len(each) else 0.0,
        worst=float(each.max()) if len(each) else 0.0,
        worst_row=int(each.argmax()) if len(each) else -1,
        scale=product / max(whole * whole, 1e-30),
        missing=int(missing.sum()),
        first_missing=first,
        both_missing=int((bad_a & bad_b).sum()),
    )


def judge(found: Difference, bound: Bound, *, by_rows: bool = False) -> str:
    """Return the verdict. ``by_rows`` goes by the median row, where single ones may well differ.

    That is so wherever a router decides: two experts of nearly equal score may change places.
    """
    if found.missing:
        return BROKEN
    return grade(found.typical if by_rows else found.relative, bound)


def grade(value: float, bound: Bound) -> str:
    """Return the verdict on one relative difference."""
    if value <= bound.relative:
        return OK
    return SUSPECT if value <= BROKEN_BEYOND * bound.relative else BROKEN


def wrong_columns(found: torch.Tensor, expected: torch.Tensor, bound: Bound) -> list[int]:
    """Outputs that are wrong by themselves though the whole is not."""
    a, b = _rows(found), _rows(expected)
    apart, own = ((x.square().mean(dim=0)).sqrt() for x in (a - b, b))
    # An output that is large may be off by more, one that is nearly zero by what is usual.
    limit = min(max(_COLUMN_BEYOND * bound.relative, _COLUMN_LEAST), _COLUMN_MOST)
    limits = limit * own.clamp(min=float(own.square().mean().sqrt()))
    return [int(i) for i in (apart > limits).nonzero().flatten()]


def describe(found: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Say how two results that differ are related, where that is plain to see."""
    a, b = _rows(found), _rows(expected)
    if not torch.isfinite(a).all():
        return None
    if not a.any():
        return "it is zero everywhere"
    plain = difference(a, b)
    if abs(plain.scale - 1.0) > 0.01 and _alike(a, plain.scale * b):
        return f"it is {plain.scale:.4g} times what it should be"
    apart = a - b
    if len(a) > 2 and _alike(apart, apart.mean(dim=0, keepdim=True).expand_as(apart)):
        return "it is off by the same vector for every token, as by a bias too few or too many"
    return None


def describe_weight(
    found: torch.Tensor, expected: torch.Tensor, others: Mapping[str, torch.Tensor]
) -> str | None:
    """Say how a wrong weight is related to the right one, or to ``others`` of the same layer."""
    if not found.any():
        return "it is zero everywhere"
    if found.shape != expected.shape:
        return f"its shape is {list(found.shape)}, not {list(expected.shape)}"
    for name, other in others.items():
        if other.shape == found.shape and _alike(found, other):
            return f"it holds the values of {name}"
    if found.dim() >= 2 and found.shape[-1] == found.shape[-2] and _alike(found.mT, expected):
        return "it is transposed"
    for dim in range(max(found.dim() - 1, 1)):
        if found.shape[dim] % 2 == 0 and _alike(found.roll(found.shape[dim] // 2, dim), expected):
            return "its two halves have changed places"
    scale = difference(found, expected).scale
    if _alike(found, scale * expected):
        return f"it is {scale:.4g} times what it should be"
    if found.dim() == 1 and _alike(
        found - expected, torch.full_like(found, float((found - expected).mean()))
    ):
        return f"every value is off by {float((found - expected).mean()):.4g}"
    if _same_multiset(found, expected):
        return "it holds the right values in another order"
    return None


def _rows(values: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        values = torch.view_as_real(values).flatten(-2)
    wide = values.detach().to("cpu", torch.float32)
    return wide.reshape(-1, wide.shape[-1]) if wide.dim() else wide.reshape(1, 1)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    size = float(b.norm())
    return bool(float((a - b).norm()) <= 1e-3 * size) if size else not a.any()


def _same_multiset(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() > 1 << 24:
        return False
    left, right = (x.flatten().sort().values for x in (a, b))
    return torch.equal(left, right)


def to_json(found: Difference) -> dict[str, Any]:
    """Plain data; what JSON cannot say becomes ``None``."""
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None
        for key, value in vars(found).items()
    }
