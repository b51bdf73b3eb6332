"""Stored weights to packed ones: GGUF blocks exactly, floats by quantising.

Everything is torch on the target device; blocks travel there packed, as they lie in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kt_core.weights import LAYOUTS, PackedTensor, QuantType
from kt_ops_cuda.layout import (
    FORMATS,
    Format,
    as_bytes,
    assemble,
    pack_entries,
    pack_high,
    pack_values,
)
from kt_ops_cuda.quantize import Quantised


@dataclass(frozen=True)
class Blocks:
    """GGUF blocks of a matrix taken apart: ``q`` ``(N, K)`` uint8 and bytes ``(N, groups, size)``.

    ``entries`` are the format's scales, ``extras`` what it keeps for each row and 128 values.
    """

    fmt: Format
    q: torch.Tensor
    entries: torch.Tensor
    extras: torch.Tensor | None = None


def _split(x: torch.Tensor, dim: int, *sizes: int) -> torch.Tensor:
    """Unflatten a dimension; torch's own method is not typed."""
    split: torch.Tensor = x.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    return split


def to_device(weight: PackedTensor, device: torch.device) -> torch.Tensor:
    """Copy the stored bytes ``(N, row_bytes)`` to ``device``."""
    # A file's mapping is read-only, which torch does not model; the copy is ours.
    return torch.from_numpy(weight.data.copy()).to(device)


def _halves(x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return as_bytes(torch.stack((scale, offset), -1)).reshape(x.shape[0], -1, 4)


def _nibbles(qs: torch.Tensor) -> torch.Tensor:
    """``(..., 16 * n)`` bytes to ``(..., 32 * n)`` values: low nibbles of 16 bytes, then high."""
    q = _split(qs, -1, -1, 16)
    return torch.stack((q & 15, q >> 4), dim=-2).flatten(-3)


def _half(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.float16)


def _q4_0(b: torch.Tensor) -> Blocks:
    d = _half(b[..., 0:2])[..., 0]
    return Blocks(FORMATS["w4_g32_offset"], _nibbles(b[..., 2:18]), _halves(b, d, -8 * d))


def _q4_1(b: torch.Tensor) -> Blocks:
    d, m = _half(b[..., 0:2])[..., 0], _half(b[..., 2:4])[..., 0]
    return Blocks(FORMATS["w4_g32_offset"], _nibbles(b[..., 4:20]), _halves(b, d, m))


def _q8_0(b: torch.Tensor) -> Blocks:
    # Flipping the top bit of a signed byte adds 128.
    return Blocks(FORMATS["w8_g32"], b[..., 2:34] ^ 128, b[..., 0:2])


def _mxfp4(b: torch.Tensor) -> Blocks:
    return Blocks(FORMATS["mxfp4"], _nibbles(b[..., 1:17]), b[..., 0:1])


def _scales_and_minima(s: torch.Tensor) -> torch.Tensor:
    """The 12 bytes of Q4_K and Q5_K to ``(..., 8, 2)``: 6-bit scale and minimum of 32 values each."""
    low, mid, high = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scale = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), -1)
    minimum = torch.cat((mid & 63, (high >> 4) | ((mid >> 6) << 4)), -1)
    return torch.stack((scale, minimum), -1)


def _k_nibbles(qs: torch.Tensor) -> torch.Tensor:
    """128 bytes to 256 values: of each 32 bytes the low nibbles, then the high ones."""
    q = _split(qs, -1, -1, 32)
    return torch.stack((q & 15, q >> 4), dim=-2).flatten(-3)


def _twice(x: torch.Tensor) -> torch.Tensor:
    """What a block of 256 holds, for each of its two 128s: ``(N, blocks, b)`` to ``(N, 2*blocks, b)``."""
    return x.repeat_interleave(2, dim=1)


def _q4_k(b: torch.Tensor) -> Blocks:
    entries = _scales_and_minima(b[..., 4:16]).flatten(1, 2)
    return Blocks(FORMATS["q4_k"], _k_nibbles(b[..., 16:144]), entries, _twice(b[..., 0:4]))


def _q5_k(b: torch.Tensor) -> Blocks:
    entries = _scales_and_minima(b[..., 4:16]).flatten(1, 2)
    shifts = torch.arange(8, dtype=torch.uint8, device=b.device)
    fifth = (b[..., 16:48].unsqueeze(-2) >> shifts[:, None]) & 1  # (N, blocks, 8, 32)
    q = _k_nibbles(b[..., 48:176]) | (fifth.flatten(-2) << 4)
    return Blocks(FORMATS["q5_k"], q, entries, _twice(b[..., 0:4]))


def _q6_k(b: torch.Tensor) -> Blocks:
    # Each half of 128: ql 64 bytes, qh 32 bytes; value 32 * j + l takes ql[l + 32 * (j % 2)]'s
    # nibble j / 2 and two bits of qh[l].
    low = _split(b[..., 0:128], -1, 2, 2, 32)
    low = torch.stack((low & 15, low >> 4), dim=-3)  # half, nibble, j % 2, l
    high = _split(b[..., 128:192], -1, 2, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=b.device)
    high = (high.unsqueeze(-2) >> shifts[:, None]) & 3  # half, j, l
    q = low.flatten(-3, -2) | (high << 4)
    entries = b[..., 192:208].flatten(1).unsqueeze(-1)
    return Blocks(FORMATS["q6_k"], q.flatten(-3), entries, _twice(b[..., 208:210]))


def _iq4_xs(b: torch.Tensor) -> Blocks:
    high = b[..., 2:4].contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    shifts = torch.arange(0, 16, 2, device=b.device)
    high = (high >> shifts) & 3
    low = b[..., 4:8]
    low = torch.stack((low & 15, low >> 4), -1).flatten(-2)
    entries = (low | (high << 4).to(torch.uint8)).flatten(1).unsqueeze(-1)
    return Blocks(FORMATS["iq4_xs"], _nibbles(b[..., 8:136]), entries, _twice(b[..., 0:2]))


_EXACT: dict[QuantType, Callable[[torch.Tensor], Blocks]] = {
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q8_0: _q8_0,
    QuantType.MXFP4: _mxfp4,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
    QuantType.IQ4_XS: _iq4_xs,
}

EXACT_FORMATS = {
    QuantType.Q4_0: FORMATS["w4_g32_offset"],
    QuantType.Q4_1: FORMATS["w4_g32_offset"],
    QuantType.Q8_0: FORMATS["w8_g32"],
    QuantType.MXFP4: FORMATS["mxfp4"],
    QuantType.Q4_K: FORMATS["q4_k"],
    QuantType.Q5_K: FORMATS["q5_k"],
    QuantType.Q6_K: FORMATS["q6_k"],
    QuantType.IQ4_XS: FORMATS["iq4_xs"],
}
"""Packed format of each stored type that is kept exactly."""


def take_apart(data: torch.Tensor, type: QuantType) -> Blocks:
    """Take ``(N, row_bytes)`` uint8 of a type in :data:`EXACT_FORMATS` apart. No value changes."""
    rows = data.shape[0]
    blocks = data.view(rows, -1, LAYOUTS[type].block_bytes)
    apart = _EXACT[type](blocks)
    return Blocks(apart.fmt, apart.q.reshape(rows, -1), apart.entries, apart.extras)


def pack_blocks(blocks: Blocks) -> torch.Tensor:
    """Pack what :func:`take_apart` returned; the result is flat uint8."""
    columns, fmt = blocks.q.shape[1], blocks.fmt
    parts = [pack_values(blocks.q & 15 if fmt.bits == 4 else blocks.q, fmt.bits)]
    if fmt.high_bits:
        parts.append(pack_high(blocks.q, fmt.high_bits))
    parts.append(pack_entries(blocks.entries, columns, fmt.group))
    if blocks.extras is not None:
        parts.append(pack_entries(blocks.extras, columns, 128))
    return assemble(*parts)


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Weave rows ``(..., N, x)`` so that each 64 are 32 of ``gate``, then the same 32 of ``up``."""
    rows = gate.shape[0]
    missing = -rows % 32

    def blocks(x: torch.Tensor) -> torch.Tensor:
        if missing:
            x = torch.cat((x, x.new_zeros((missing, *x.shape[1:]))))
        return _split(x, 0, -1, 32)

    return torch.stack((blocks(gate), blocks(up)), dim=1).flatten(0, 2)


def interleave_blocks(gate: Blocks, up: Blocks) -> Blocks:
    """Weave two matrices of the same format for a gated product."""
    extras = (
        None if gate.extras is None or up.extras is None else interleave(gate.extras, up.extras)
    )
    return Blocks(
        gate.fmt,
        interleave(gate.q, up.q),
        interleave(gate.entries, up.entries),
        extras,
    )


def blocks_of(weight: Quantised) -> Blocks:
    """Quantised floats, taken apart likewise."""
    scale = weight.scale.half()
    entry = (scale,) if weight.offset is None else (scale, weight.offset.half())
    return Blocks(weight.fmt, weight.q, as_bytes(torch.stack(entry, -1)))
