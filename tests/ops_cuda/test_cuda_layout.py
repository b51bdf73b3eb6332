"""The packed layout, from the host's side: where each value lies, and that nothing is lost."""

from __future__ import annotations

import pytest
import torch
from kt_ops_cuda.layout import (
    FORMATS,
    pack_entries,
    pack_high,
    pack_values,
    packed_bytes,
    unpack_values,
)


def _place(row, column):
    """What formats.cuh says: block, step, tile, half, g, k step, upper, t, odd."""
    within, column_in = row % 64, column % 128
    step, at = divmod(column_in, 16)
    return (
        row // 64,
        column // 128,
        within // 16,
        within % 16 // 8,
        within % 8,
        step,
        at // 8,
        at % 8 // 2,
        at % 2,
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(64, 128), (70, 300), (1, 8), (129, 1032)])
def test_values_survive(bits, shape):
    q = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    packed = pack_values(q, bits)
    assert torch.equal(unpack_values(packed, bits)[: shape[0], : shape[1]], q)
    padding = unpack_values(packed, bits)
    padding[: shape[0], : shape[1]] = 0
    assert not padding.any()


@pytest.mark.parametrize("position", [(0, 0), (13, 77), (29, 205), (69, 299), (40, 128)])
def test_four_bits_lie_where_the_kernels_look(position):
    row, column = position
    q = torch.zeros((70, 300), dtype=torch.uint8)
    q[row, column] = 11
    block, chunk, tile, half, g, step, upper, t, odd = _place(row, column)
    piece, word = divmod(step, 4)
    at = (piece * 4 + tile) * 512 + (g * 4 + t) * 16 + word * 4
    data = pack_values(q, 4)[block, chunk]
    value = int.from_bytes(bytes(data[at : at + 4].tolist()), "little")
    assert value >> (16 * odd + 4 * (2 * upper + half)) & 15 == 11
    assert data.count_nonzero() == 1


@pytest.mark.parametrize("position", [(0, 0), (13, 77), (29, 205), (69, 299)])
def test_eight_bits_lie_where_the_kernels_look(position):
    row, column = position
    q = torch.zeros((70, 300), dtype=torch.uint8)
    q[row, column] = 201
    block, chunk, tile, half, g, step, upper, t, odd = _place(row, column)
    piece, within = divmod(step, 2)
    at = (piece * 4 + tile) * 512 + (g * 4 + t) * 16 + within * 8 + upper * 4 + odd * 2 + half
    data = pack_values(q, 8)[block, chunk]
    assert data[at] == 201
    assert data.count_nonzero() == 1


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("position", [(0, 0), (13, 77), (29, 205), (69, 299)])
def test_high_bits_lie_where_the_kernels_look(bits, position):
    row, column = position
    q = torch.zeros((70, 300), dtype=torch.uint8)
    q[row, column] = ((1 << bits) - 1) << 4 | 5
    block, chunk, tile, half, g, step, upper, t, odd = _place(row, column)
    word, place = divmod(step * 2 + upper, 8 // bits)
    at = (tile * 32 + g * 4 + t) * 8 * bits + word * 4 + odd * 2 + half
    data = pack_high(q, bits)[block, chunk]
    assert data[at] >> (place * bits) & ((1 << bits) - 1) == (1 << bits) - 1
    assert data.count_nonzero() == 1


@pytest.mark.parametrize("group", [16, 32, 128])
def test_entries_lie_where_the_kernels_look(group):
    rows, columns = 70, 300
    entries = torch.zeros((rows, -(-columns // group), 2), dtype=torch.uint8)
    row, index = 69, 300 // group
    index = min(index, entries.shape[1] - 1)
    entries[row, index] = torch.tensor([7, 9], dtype=torch.uint8)
    per_chunk = 128 // group
    block, _, tile, half, g, *_ = _place(row, 0)
    chunk, within = divmod(index, per_chunk)
    at = (((tile * per_chunk + within) * 8 + g) * 2 + half) * 2
    data = pack_entries(entries, columns, group)[block, chunk]
    assert data[at : at + 2].tolist() == [7, 9]
    assert data.count_nonzero() == 2


def test_sizes_are_what_the_kernels_compute_with():
    sizes = {name: fmt.chunk_bytes for name, fmt in FORMATS.items()}
    assert sizes == {
        "w4_g128": 4096 + 128,
        "w4_g128_offset": 4096 + 256,
        "w4_g32_offset": 4096 + 1024,
        "q4_k": 4096 + 512 + 256,
        "w8_g128": 8192 + 128,
        "w8_g32": 8192 + 512,
        "q5_k": 4096 + 1024 + 512 + 256,
        "q6_k": 4096 + 2048 + 512 + 128,
        "iq4_xs": 4096 + 256 + 128,
        "mxfp4": 4096 + 256,
    }
    assert packed_bytes(FORMATS["w4_g128"], 65, 129) == 4 * (4096 + 128)
