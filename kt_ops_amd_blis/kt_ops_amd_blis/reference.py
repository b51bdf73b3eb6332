"""The same arithmetic in plain numpy: what the native code is compared with. Slow and never a fallback."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Int8s = npt.NDArray[np.int8]

_TINY = 1e-35


def quantize(x: Floats, group: int = 0) -> tuple[Int8s, npt.NDArray[np.float32]]:
    """Quantise the rows of ``x`` ``(rows, k)`` to int8, one scale per row and ``group`` values.

    Returns ``(q, scales)`` of shapes ``(rows, k)`` and ``(rows, groups)``. Values below 1e-35 in a
    whole group count as zero; a group with NaN or infinity has a scale of NaN.
    """
    x = np.asarray(x, np.float32)
    rows, k = x.shape
    group = group or k
    q = np.zeros((rows, k), np.int8)
    scales = np.zeros((rows, -(-k // group)), np.float32)
    for index, start in enumerate(range(0, k, group)):
        part = x[:, start : start + group]
        largest = np.abs(part).max(axis=1)
        finite = np.isfinite(part).all(axis=1)
        some = finite & (largest >= _TINY)
        scales[some, index] = largest[some] / np.float32(127)
        scales[~finite, index] = np.nan
        inverse = np.float32(127) / largest[some, None]
        q[some, start : start + group] = np.rint(part[some] * inverse).astype(np.int8)
    return q, scales


def multiply(
    a: Int8s,
    a_scales: npt.NDArray[np.float32],
    b: Int8s,
    b_scales: npt.NDArray[np.float32],
    group: int = 0,
) -> npt.NDArray[np.float64]:
    """Return ``(a * a_scales) @ (b * b_scales).T`` with exact integer sums within a group."""
    k = a.shape[1]
    group = group or k
    total = np.zeros((a.shape[0], b.shape[0]))
    for index, start in enumerate(range(0, k, group)):
        # Whole numbers below 2**53: float64 products and sums of them are exact.
        part = a[:, start : start + group].astype(np.float64)
        exact = part @ b[:, start : start + group].astype(np.float64).T
        scale = np.multiply.outer(a_scales[:, index], b_scales[:, index], dtype=np.float32)
        total += exact * scale
    return total


def activate(
    gate: Floats, up: Floats, kind: str = "silu", alpha: float = 1.702, limit: float = 7.0
) -> Floats:
    """Return ``act(gate) * up`` as :class:`kt_core.operators.kernel.Activation` defines it."""
    if kind == "swiglu_oai":
        gate = np.minimum(gate, limit)
        up = np.clip(up, -limit, limit)
        return np.asarray((up + 1) * gate * _sigmoid(alpha * gate))
    if kind == "silu":
        return np.asarray(gate * _sigmoid(gate) * up)
    if kind == "relu":
        return np.asarray(np.maximum(gate, 0) * up)
    if kind == "gelu_tanh":
        inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        return np.asarray(0.5 * gate * (1 + np.tanh(inner)) * up)
    return np.asarray(0.5 * gate * (1 + np.vectorize(math.erf)(gate / np.sqrt(2))) * up)


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def experts(
    x: Floats,
    index: npt.NDArray[np.int64],
    weights: Floats,
    gate: Floats,
    up: Floats,
    down: Floats,
    *,
    group: int = 0,
    kind: str = "silu",
) -> npt.NDArray[np.float64]:
    """Return what the int8 layer computes, rounding where it rounds and exact in between.

    ``x`` ``(tokens, hidden)``; ``index``, ``weights`` ``(tokens, k)``; ``gate``, ``up`` ``(experts,
    inter, hidden)``; ``down`` ``(experts, hidden, inter)``.
    """
    out = np.zeros(x.shape)
    xq, xs = quantize(x, group)
    for expert in range(gate.shape[0]):
        tokens, slots = np.nonzero(index == expert)
        if not len(tokens):
            continue
        rows, scales = xq[tokens], xs[tokens]
        g = multiply(rows, scales, *quantize(gate[expert], group), group)
        u = multiply(rows, scales, *quantize(up[expert], group), group)
        hq, hs = quantize(activate(g, u, kind).astype(np.float32), group)
        y = multiply(hq, hs, *quantize(down[expert], group), group)
        np.add.at(out, tokens, y * weights[tokens, slots][:, None])
    return out
