"""Packed weights in the order ``csrc/formats.cuh`` describes, built with torch on any device.

A chunk holds 64 rows by 128 values of K: quantised values first, then what scales them. Rows are
numbered ``tile * 16 + half * 8 + g``; values of K ``step * 16 + upper * 8 + t * 2 + odd``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kt_ops_cuda import native

CHUNK_ROWS = 64
CHUNK_DEPTH = 128


@dataclass(frozen=True)
class Format:
    """One packed format: bits per value, values that share a scale, bytes of each scale and each row.

    ``bits`` are those that lie together (4 or 8), ``high_bits`` the ones above them that lie apart.
    """

    name: str
    number: int
    bits: int
    group: int
    entry_bytes: int
    extra_bytes: int = 0
    high_bits: int = 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk."""
        values = CHUNK_ROWS * CHUNK_DEPTH * (self.bits + self.high_bits) // 8
        groups = CHUNK_DEPTH // self.group
        return values + CHUNK_ROWS * (groups * self.entry_bytes + self.extra_bytes)


FORMATS = {
    item.name: item
    for item in (
        Format("w4_g128", native.W4_G128, 4, 128, 2),
        Format("w4_g128_offset", native.W4_G128_OFFSET, 4, 128, 4),
        Format("w4_g32_offset", native.W4_G32_OFFSET, 4, 32, 4),
        Format("q4_k", native.Q4_K, 4, 32, 2, 4),
        Format("w8_g128", native.W8_G128, 8, 128, 2),
        Format("w8_g32", native.W8_G32, 8, 32, 2),
        Format("q5_k", native.Q5_K, 4, 32, 2, 4, high_bits=1),
        Format("q6_k", native.Q6_K, 4, 16, 1, 2, high_bits=2),
        Format("iq4_xs", native.IQ4_XS, 4, 32, 1, 2),
        Format("mxfp4", native.MXFP4, 4, 32, 1),
    )
}
"""The packed formats by name; ``csrc/formats.cuh`` says what each holds."""


def padded(count: int, multiple: int) -> int:
    """Round ``count`` up to a multiple."""
    return -(-count // multiple) * multiple


def packed_bytes(fmt: Format, out_features: int, in_features: int) -> int:
    """Bytes of one packed matrix, padding included."""
    blocks = padded(out_features, CHUNK_ROWS) // CHUNK_ROWS
    steps = padded(in_features, CHUNK_DEPTH) // CHUNK_DEPTH
    return blocks * steps * fmt.chunk_bytes


def _pad(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    if tuple(x.shape) == (rows, columns):
        return x
    out = x.new_zeros((rows, columns))
    out[: x.shape[0], : x.shape[1]] = x
    return out


def pack_values(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack unsigned values ``(N, K)`` uint8 to ``(blocks, steps, bytes)`` uint8."""
    rows, depth = padded(q.shape[0], CHUNK_ROWS), padded(q.shape[1], CHUNK_DEPTH)
    blocks, steps = rows // CHUNK_ROWS, depth // CHUNK_DEPTH
    pieces = 2 if bits == 4 else 4
    # block, tile, half, g | step, piece, k step, upper, t, odd
    x = _pad(q, rows, depth).view(blocks, 4, 2, 8, steps, pieces, 8 // pieces, 2, 4, 2)
    if bits == 4:
        # A byte holds rows g and g + 8 of one column; word order is odd, upper.
        x = x.permute(0, 4, 5, 1, 3, 8, 6, 9, 7, 2)
        x = x[..., 0] | (x[..., 1] << 4)
    else:
        x = x.permute(0, 4, 5, 1, 3, 8, 6, 7, 9, 2)
    return x.reshape(blocks, steps, -1)


def pack_high(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the bits above the low four of ``(N, K)`` uint8 values: ``bits`` (1 or 2) of each."""
    rows, depth = padded(q.shape[0], CHUNK_ROWS), padded(q.shape[1], CHUNK_DEPTH)
    blocks, steps = rows // CHUNK_ROWS, depth // CHUNK_DEPTH
    per_word = 8 // bits  # 8-bit words whose high bits share a word
    # block, tile, half, g | step, word, place in it (k step and upper together), t, odd
    x = (_pad(q, rows, depth) >> 4).view(blocks, 4, 2, 8, steps, 16 // per_word, per_word, 4, 2)
    # block, step, tile, g, t, word, byte (odd, half), place
    x = x.permute(0, 4, 1, 3, 7, 5, 8, 2, 6)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=q.device)
    return (x << shifts).sum(-1, dtype=torch.uint8).reshape(blocks, steps, -1)


def unpack_values(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Invert :func:`pack_values`; the result keeps the padding."""
    blocks, steps = packed.shape[:2]
    if bits == 4:
        x = packed.view(blocks, steps, 2, 4, 8, 4, 4, 2, 2)
        x = torch.stack((x & 15, x >> 4), dim=-1)
        x = x.permute(0, 3, 9, 4, 1, 2, 6, 8, 5, 7)
    else:
        x = packed.view(blocks, steps, 4, 4, 8, 4, 2, 2, 2, 2)
        x = x.permute(0, 3, 9, 4, 1, 2, 6, 7, 5, 8)
    return x.reshape(blocks * CHUNK_ROWS, steps * CHUNK_DEPTH)


def pack_entries(entries: torch.Tensor, in_features: int, group: int) -> torch.Tensor:
    """Pack per-group entries ``(N, groups, bytes)`` uint8 to ``(blocks, steps, bytes)``.

    A group is ``group`` values of the row's ``in_features``; rows and groups are padded with zeros,
    so that padding multiplies to zero.
    """
    rows, groups, size = entries.shape
    steps, per_chunk = padded(in_features, CHUNK_DEPTH) // CHUNK_DEPTH, CHUNK_DEPTH // group
    blocks = padded(rows, CHUNK_ROWS) // CHUNK_ROWS
    full = entries.new_zeros((blocks * CHUNK_ROWS, steps * per_chunk, size))
    full[:rows, :groups] = entries
    # block, tile, half, g, step, group, byte -> block, step, tile, group, g, half, byte
    x = full.view(blocks, 4, 2, 8, steps, per_chunk, size).permute(0, 4, 1, 5, 3, 2, 6)
    return x.reshape(blocks, steps, -1)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """View the last dimension of a float16 tensor as bytes."""
    return x.contiguous().view(torch.uint8)


def assemble(*parts: torch.Tensor) -> torch.Tensor:
    """Join values and entries of each chunk; the result is flat uint8."""
    return torch.cat(parts, dim=2).reshape(-1)
