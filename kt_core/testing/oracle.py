"""What kernels must compute, written as plainly as it can be: loops in float64, no shared code.

These are oracles for tests, never a way to run a model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kt_core.operators.kernel import Activation, ExpertsWeights
from kt_core.weights import PackedTensor

Doubles = npt.NDArray[np.float64]


def linear_oracle(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias`` in float64; ``x`` is ``(..., in)``, ``weight`` ``(out, in)`` packed."""
    matrix = torch.from_numpy(weight.dequantize().astype(np.float64))
    y = x.double().cpu() @ matrix.T
    return y if bias is None else y + bias.double().cpu()


def experts_oracle(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    weights: ExpertsWeights,
    activation: Activation | None = None,
) -> torch.Tensor:
    """The weighted sum over each token's experts, float64 ``(tokens, hidden)``, token by token.

    ``hidden_states`` is ``(tokens, hidden)``; ``top_k_index`` and ``top_k_weights`` are
    ``(tokens, k)``. An id of -1 adds nothing.

    Raises:
        IndexError: for any other id that is no expert's.
    """
    act = activation or Activation()
    rows = hidden_states.double().cpu().numpy()
    out = np.zeros_like(rows)
    # Rows with infinities or NaN are a caller's business; numpy need not warn of them.
    with np.errstate(all="ignore"):
        _add_rows(out, rows, top_k_index, top_k_weights, weights, act)
    return torch.from_numpy(out)


def _add_rows(
    out: Doubles,
    rows: Doubles,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    weights: ExpertsWeights,
    act: Activation,
) -> None:
    experts: dict[int, tuple[Doubles, ...]] = {}
    for token, (ids, shares) in enumerate(
        zip(top_k_index.tolist(), top_k_weights.double().tolist(), strict=True)
    ):
        for expert, share in zip(ids, shares, strict=True):
            if expert == -1:
                continue
            if not 0 <= expert < len(weights.gate):
                raise IndexError(f"there is no expert {expert}")
            if expert not in experts:
                experts[expert] = _matrices(weights, expert)
            gate, up, down = experts[expert]
            g = gate @ rows[token] + _row(weights.gate_bias, expert)
            u = up @ rows[token] + _row(weights.up_bias, expert)
            y = down @ _gated(g, u, act) + _row(weights.down_bias, expert)
            out[token] += share * y


def _matrices(weights: ExpertsWeights, expert: int) -> tuple[Doubles, ...]:
    parts = (weights.gate[expert], weights.up[expert], weights.down[expert])
    return tuple(part.dequantize().astype(np.float64) for part in parts)


def _row(bias: torch.Tensor | None, expert: int) -> Any:
    return 0.0 if bias is None else bias[expert].double().cpu().numpy()


def _gated(gate: Doubles, up: Doubles, act: Activation) -> Doubles:
    """``act(gate) * up``, value by value."""
    if act.kind == "swiglu_oai":
        gate, up = np.minimum(gate, act.limit), np.clip(up, -act.limit, act.limit)
        return np.asarray((up + 1) * gate * _sigmoid(act.alpha * gate))
    if act.kind == "silu":
        return np.asarray(gate * _sigmoid(gate) * up)
    if act.kind == "gelu":
        erf = np.array([math.erf(value / math.sqrt(2)) for value in gate.ravel()])
        return np.asarray(0.5 * gate * (1 + erf.reshape(gate.shape)) * up)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return np.asarray(0.5 * gate * (1 + np.tanh(inner)) * up)


def _sigmoid(values: Doubles) -> Doubles:
    # Half a tanh: no overflow at either end, which 1 / (1 + exp(-x)) has.
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))
