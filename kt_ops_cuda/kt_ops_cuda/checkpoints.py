"""GPTQ and AWQ tensors of one layer as quantised weights this distribution packs.

Facts: AutoGPTQ's ``qweight`` ``(K / 8, N)`` int32 holds eight values along K, lowest bits first, and its
``qzeros`` ``(groups, N / 8)`` eight along N, each one less than the zero point. AutoAWQ packs eight
values along N in both, in the order 0 2 4 6 1 3 5 7, and stores zero points as they are. ``scales`` are
``(groups, N)``; a weight is ``(q - zero) * scale``.
"""

from __future__ import annotations

import torch

from kt_ops_cuda import refuse
from kt_ops_cuda.quantize import Quantised, format_for

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """``(a, b)`` int32 to ``(a, b, 8)`` uint8 values, lowest bits first."""
    if words.dtype != torch.int32 or words.dim() != 2:
        raise refuse.bad_checkpoint(
            "a packed tensor is not a matrix of int32", f"{words.dtype} {list(words.shape)}"
        )
    shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & 15).to(torch.uint8)


def _finish(q: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> Quantised:
    """``q`` ``(N, K)``, ``zeros`` and ``scales`` ``(groups, N)``."""
    rows, columns = q.shape
    if zeros.shape != scales.shape or scales.shape[1] != rows:
        raise refuse.bad_checkpoint(
            "qweight, qzeros and scales disagree",
            f"weights {[rows, columns]}, zero points {list(zeros.shape)}, scales {list(scales.shape)}",
        )
    groups = scales.shape[0]
    size = -1 if groups == 1 else columns // groups
    if groups == 0 or columns % groups or (size != -1 and size not in (32, 64, 128)):
        raise refuse.bad_checkpoint(
            "the group size is none of 32, 64, 128 and the whole row",
            f"{columns} values, {groups} groups",
        )
    symmetric = bool((zeros == 8).all())
    fmt = format_for(4, size, symmetric)
    if fmt is None:  # 4 bits have a format for every group size
        raise refuse.bad_checkpoint("no packed format serves this group size", str(size))
    scale = scales.T.to(torch.float16).float()
    offset = -zeros.T.float() * scale
    wanted = -(-columns // fmt.group)
    spread = torch.arange(wanted, device=q.device) * fmt.group // (columns if size == -1 else size)
    return Quantised(
        q.contiguous(),
        scale[:, spread],
        offset[:, spread] if fmt.entry_bytes == 4 else None,
        fmt,
    )


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
) -> Quantised:
    """Read a 4-bit GPTQ layer.

    Raises:
        KernelError: KT558 if the tensors disagree, or ``g_idx`` reorders rows across groups.
    """
    q = _unpack(qweight).permute(1, 0, 2).flatten(1)
    zeros = _unpack(qzeros).flatten(1) + 1
    if g_idx is not None and scales.shape[0] > 0:
        size = -(-q.shape[1] // scales.shape[0])
        natural = torch.arange(q.shape[1], device=g_idx.device) // size
        if g_idx.shape != natural.shape or not torch.equal(g_idx.to(natural.dtype), natural):
            raise refuse.bad_checkpoint(
                "the checkpoint reorders rows by activation (act_order), which has no kernel here",
                "g_idx is not the natural order of groups",
            )
    return _finish(q, zeros, scales)


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Quantised:
    """Read a 4-bit AWQ layer.

    Raises:
        KernelError: KT558 if the tensors disagree.
    """
    order = torch.tensor(_AWQ_ORDER, device=qweight.device).argsort()
    q = _unpack(qweight)[..., order].flatten(1).T
    zeros = _unpack(qzeros)[..., order].flatten(1)
    return _finish(q, zeros, scales)
