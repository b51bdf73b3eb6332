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
    """One packed format: bits per value, groups per chunk along K, bytes per scale entry, extras."""

    name: str
    number: int
    bits: int
    group: int
    entry_bytes: int
    extra_bytes: int = 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk."""
        values = CHUNK_ROWS * CHUNK_DEPTH * self.bits // 8
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
    )
}


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


def pack_entries(entries: torch.Tensor, out_features: int, in_features: int) -> torch.Tensor:
    """Pack per-group entries ``(N, groups, bytes)`` uint8 to ``(blocks, steps, bytes)``.

    ``groups`` covers ``in_features`` in equal parts; rows and groups are padded with zeros.
    """
    rows, groups, size = entries.shape
    steps = padded(in_features, CHUNK_DEPTH) // CHUNK_DEPTH
    per_chunk = max(1, round(groups * CHUNK_DEPTH / in_features))
    blocks = padded(out_features, CHUNK_ROWS) // CHUNK_ROWS
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
