"""The linear kernels on a GPU against float64: every format, tile and split, on poisoned outputs."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch
from kt_ops_cuda.layout import FORMATS
from kt_ops_cuda.packing import Blocks, blocks_of, pack_blocks, take_apart
from kt_ops_cuda.quantize import quantise
from kt_ops_cuda.reference import dequantize_blocks, linear

from kt_core.testing.packed import random_packed
from kt_core.weights import QuantType
from kt_ops_cuda import native, ops

pytestmark = pytest.mark.gpu

# Products are exact and sums float32 up to 16 tokens; from 33 on each weight is rounded to the
# activations' dtype first, and so are scale and offset, which for a small weight between two large
# terms counts twice.
BOUND = {
    (torch.float16, "mma"): 4e-4,
    (torch.bfloat16, "mma"): 2.6e-3,
    (torch.float16, "wgmma"): 8e-4,
    (torch.bfloat16, "wgmma"): 1e-2,
}
STORED = {
    "w4_g32_offset": "Q4_1",
    "q4_k": "Q4_K",
    "w8_g32": "Q8_0",
    "q5_k": "Q5_K",
    "q6_k": "Q6_K",
    "iq4_xs": "IQ4_XS",
    "mxfp4": "MXFP4",
}
QUANTISED = {"w4_g128": (4, True), "w4_g128_offset": (4, False), "w8_g128": (8, True)}
SHAPES = [(64, 128), (200, 1024), (1000, 4352)]
VARIANTS = [
    (tile, rows, warps, split, tokens)
    for tile, counts in ((8, (1, 5, 8)), (16, (9, 40)), (32, (17, 70)))
    for rows, warps in ((64, 4), (64, 8), (128, 4))
    for split in (1, 2, 8)
    for tokens in counts
] + [
    (tile, 0, 0, split, tokens)
    for tile, counts in ((64, (33, 64, 70)), (128, (65, 300)), (256, (257, 511)))
    for split in (1, 2, 8)
    for tokens in counts
]
# The persistent grid: tiles and the two ways of sharing K.
VARIANTS += [
    (tile, rows, 0, split, tokens)
    for tile, rows, counts in (
        (64, 256, (3, 17, 40, 64, 150)),
        (48, 384, (9, 33, 48, 100)),
        (128, 256, (30, 65, 128, 300)),
    )
    for split in (1, -1, 2, 3, 7, 16)
    for tokens in counts
]


def matrix(fmt: str, rows: int, columns: int, device: torch.device) -> tuple[Blocks, torch.Tensor]:
    """Random blocks of a format and their values in float64."""
    if fmt in STORED:
        stored = QuantType(STORED[fmt])
        columns = -(-columns // 256) * 256 if stored.endswith(("_K", "_XS")) else columns
        weight = random_packed(stored, (rows, columns), seed=rows + columns)
        blocks = take_apart(torch.from_numpy(weight.data.copy()).to(device), stored)
    else:
        bits, symmetric = QUANTISED[fmt]
        values = torch.randn(rows, columns, device=device)
        blocks = blocks_of(quantise(values + 0.2, bits, 128, symmetric))
    return blocks, dequantize_blocks(blocks)


def launch(call: native.Matmul) -> int:
    """Run a call whose tile is given, with scratch memory that holds other numbers."""
    lib = native.library()
    needed = lib.kt_matmul_scratch(ctypes.byref(call))
    scratch = torch.randint(0, 256, (max(needed, 1),), dtype=torch.uint8, device="cuda")
    if needed > 0:
        call.scratch, call.ticket = scratch.data_ptr(), random.getrandbits(63) + 1
    return int(lib.kt_matmul_run(ctypes.byref(call), torch.cuda.current_stream().cuda_stream))


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fmt", list(FORMATS))
def test_every_variant_agrees_with_float64(fmt, dtype, cuda):
    ran = set()
    for rows, columns in SHAPES:
        blocks, weight = matrix(fmt, rows, columns, cuda)
        packed = pack_blocks(blocks)
        columns = weight.shape[1]
        for tile, block_rows, warps, split, tokens in VARIANTS:
            x = torch.randn(tokens, columns, device=cuda).to(dtype)
            y = torch.full((tokens, rows), float("nan"), device=cuda, dtype=dtype)
            call = ops._matmul(x, y, packed, None, FORMATS[fmt].number, rows)
            call.tile_tokens, call.split, call.rows, call.warps = tile, split, block_rows, warps
            call.stages = 0 if tile > 32 else 2
            code = launch(call)
            if code == -4:
                continue  # not every format has every variant
            assert code == 0, native.explain(code)
            bound = BOUND[dtype, "mma" if tile <= 32 else "wgmma"]
            what = f"{rows}x{columns} tile {tile} rows {block_rows} warps {warps} split {split}"
            assert error(y, linear(x, weight)) < bound, f"{what} tokens {tokens}"
            ran.add((tile, block_rows, warps, split))
    assert {tile for tile, *_ in ran} == {8, 16, 32, 48, 64, 128, 256}
    for tile, block_rows in ((64, 256), (48, 384), (128, 256)):
        splits = {split for t, r, _, split in ran if (t, r) == (tile, block_rows)}
        assert splits == {1, -1, 2, 3, 7, 16}


@pytest.mark.parametrize("fmt", ["w4_g128", "q4_k", "q6_k"])
@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 31, 32, 64, 100, 256, 512, 1024, 1500])
def test_the_chosen_variant_agrees(fmt, tokens, cuda):
    blocks, weight = matrix(fmt, 320, 2048, cuda)
    bias = torch.zeros(320, device=cuda).uniform_(-1, 1)
    x = torch.randn(tokens, weight.shape[1], device=cuda).half()
    y = ops.linear(x, pack_blocks(blocks), bias, FORMATS[fmt].number, 320)
    assert error(y, linear(x, weight, bias)) < 1e-3


@pytest.mark.parametrize("fmt", list(FORMATS))
def test_dequantised_rows_are_the_values(fmt, cuda):
    blocks, weight = matrix(fmt, 200, 512, cuda)
    for dtype in (torch.float16, torch.bfloat16):
        values = ops.dequantize(
            pack_blocks(blocks), FORMATS[fmt].number, 200, weight.shape[1], dtype
        )
        assert torch.equal(values, weight.float().to(dtype))


def test_padding_and_strides(cuda):
    values = torch.randn(70, 100, device=cuda)
    blocks = blocks_of(quantise(values, 4, 32, symmetric=False))
    weight, packed = dequantize_blocks(blocks), pack_blocks(blocks)
    wide = torch.randn(9, 300, device=cuda).half()
    for x in (wide[:, :100], wide[:, 3:103], wide[:, ::3], wide[::2, 100:200]):
        y = ops.linear(x, packed, None, blocks.fmt.number, 70)
        assert error(y, linear(x, weight)) < 4e-4


def test_a_graph_replays_on_new_inputs(cuda):
    blocks, weight = matrix("q4_k", 256, 1024, cuda)
    packed = pack_blocks(blocks)
    x = torch.zeros(4, 1024, device=cuda, dtype=torch.bfloat16)
    ops.linear(x, packed, None, blocks.fmt.number, 256)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(3):  # each starts before the one ahead has ended
            y = ops.linear(y, packed, None, blocks.fmt.number, 256).repeat(1, 4)
    for _ in range(3):
        x.normal_(std=0.1)
        graph.replay()
        expected = x.double()
        for _ in range(3):
            expected = linear(expected.bfloat16(), weight).bfloat16().double().repeat(1, 4)
        assert error(y, expected) < 0.02


def test_torch_accepts_the_operators(cuda):
    blocks, weight = matrix("q4_k", 64, 256, cuda)
    packed = pack_blocks(blocks)
    x = torch.randn(3, 256, device=cuda).half()
    torch.library.opcheck(
        torch.ops.kt_ops_cuda.linear.default, (x, packed, None, blocks.fmt.number, 64)
    )
    compiled = torch.compile(
        lambda x: ops.linear(x, packed, None, blocks.fmt.number, 64) * 2,
        backend="aot_eager",
        fullgraph=True,
    )
    assert error(compiled(x), 2 * linear(x, weight)) < 1e-3


@pytest.mark.parametrize("tokens", [40, 200, 512])
def test_large_matrices_replay_with_the_same_ticket(tokens, cuda):
    # Big enough for the persistent grid; flags in scratch memory must be free again after a run.
    blocks, weight = matrix("w4_g128", 4608, 9216, cuda)
    packed = pack_blocks(blocks)
    x = torch.randn(tokens, 9216, device=cuda).half()
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        ops.linear(x, packed, None, blocks.fmt.number, 4608)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=warm):
        first = ops.linear(x, packed, None, blocks.fmt.number, 4608)
        second = ops.linear(-x, packed, None, blocks.fmt.number, 4608)
    for _ in range(5):
        x.normal_()
        first.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert error(first, linear(x, weight)) < 1e-3
        assert torch.equal(first, -second)


def test_a_refused_launch_leaves_no_error_behind(cuda):
    blocks, weight = matrix("w4_g128", 64, 128, cuda)
    packed = pack_blocks(blocks)
    x = torch.randn(3, 128, device=cuda).half()
    y = torch.empty(3, 64, device=cuda).half()
    call = ops._matmul(x, y, packed, None, blocks.fmt.number, 64)
    stream = torch.cuda.current_stream().cuda_stream
    for field, value, code in (
        ("format", 77, -1),
        ("dtype", 5, -2),
        ("in_features", 127, -3),
        ("tile_tokens", 24, -4),
        ("split", 3, -4),
    ):
        good = getattr(call, field)
        setattr(call, field, value)
        assert native.library().kt_matmul_run(ctypes.byref(call), stream) == code, field
        setattr(call, field, good)
    assert native.library().kt_matmul_run(ctypes.byref(call), stream) == 0
    torch.cuda.synchronize()
    assert error(y, linear(x, weight)) < 4e-4
