"""Plain computations that the kernels are held against. Never a fallback."""

from __future__ import annotations

import torch

from kt_ops_cuda.packing import Blocks

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _halves(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.float16).double()


def dequantize_blocks(blocks: Blocks) -> torch.Tensor:
    """Return the values ``(N, K)`` of blocks that were taken apart, in float64."""
    fmt, columns = blocks.fmt, blocks.q.shape[1]
    q, entries = blocks.q.double(), blocks.entries
    extras = None
    if blocks.extras is not None:
        per_extra = 128 // fmt.group
        extras = _halves(blocks.extras).repeat_interleave(per_extra, 1)[:, : entries.shape[1]]
    if fmt.name in ("q4_k", "q5_k") and extras is not None:
        scale = extras[..., 0] * entries[..., 0]
        offset = -extras[..., 1] * entries[..., 1]
    elif fmt.name == "q6_k" and extras is not None:
        scale = extras[..., 0] * entries[..., 0].view(torch.int8).double()
        offset = -32 * scale
    elif fmt.name == "iq4_xs" and extras is not None:
        scale = extras[..., 0] * (entries[..., 0].double() - 32)
        offset = torch.zeros_like(scale)
        q = torch.tensor(_IQ4, dtype=torch.float64, device=q.device)[blocks.q.long()]
    elif fmt.name == "mxfp4":
        scale = torch.exp2(entries[..., 0].double() - 127)
        offset = torch.zeros_like(scale)
        table = torch.tensor((*_MXFP4, *(-v for v in _MXFP4)), dtype=torch.float64)
        q = table.to(q.device)[blocks.q.long()]
    elif fmt.entry_bytes == 4:
        pair = _halves(entries)
        scale, offset = pair[..., 0], pair[..., 1]
    else:
        scale = _halves(entries)[..., 0]
        offset = scale * (-8 if fmt.bits == 4 else -128)

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(fmt.group, 1)[:, :columns]

    return q * spread(scale) + spread(offset)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` in float64."""
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """SwiGLU experts ``(experts, rows, columns)`` as a plain loop in float64; id -1 adds nothing."""
    y = torch.zeros_like(x, dtype=torch.float64)
    for token in range(x.shape[0]):
        for expert, score in zip(ids[token].tolist(), scores[token].double(), strict=True):
            if expert < 0:
                continue
            row = x[token].double()
            inner = torch.nn.functional.silu(gate[expert].double() @ row) * (
                up[expert].double() @ row
            )
            y[token] += score * (down[expert].double() @ inner)
    return y
