"""Torch operators over the C interface: ``torch.ops.kt_ops_cuda.*``.

Each has a fake implementation, allocates only its outputs and scratch through torch, and never
synchronises, so that ``torch.compile`` and CUDA graphs take them as they are. Packed weights are flat
uint8 tensors in the layout of ``layout.py``.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import torch

from kt_ops_cuda import native, refuse
from kt_ops_cuda.layout import padded

_DTYPES = {torch.float16: native.F16, torch.bfloat16: native.BF16, torch.float32: native.F32}

DEQUANTISE_FROM = 1024
"""From so many tokens on, weights are written out once as 16-bit rows for the library's matmul."""

# torch does not type its registration functions; Any keeps that in one place.
_torch_library: Any = torch.library
_LIBRARY = _torch_library.Library("kt_ops_cuda", "DEF")
_LIBRARY.define(
    "linear(Tensor x, Tensor weights, Tensor? bias, int format, int out_features) -> Tensor"
)
_LIBRARY.define(
    "dequantize(Tensor weights, int format, int out_features, int in_features, ScalarType dtype)"
    " -> Tensor"
)
_LIBRARY.define(
    "experts(Tensor x, Tensor ids, Tensor scores, Tensor gate_up, Tensor down, Tensor? gate_up_bias,"
    " Tensor? down_bias, Tensor(a!) bad_id, int gate_up_format, int down_format, int experts,"
    " int intermediate, int activation, float alpha, float limit) -> Tensor"
)


def _stream(x: torch.Tensor) -> int:
    return int(torch.cuda.current_stream(x.device).cuda_stream)


def _check(code: int, what: str) -> None:
    if code != 0:
        raise refuse.launch_failed(what, code, native.explain(code))


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` ``(tokens, k)`` as rows the copies can read: 16-byte aligned, k a multiple of 8."""
    if x.shape[1] % 8:
        x = torch.nn.functional.pad(x, (0, 8 - x.shape[1] % 8))
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16 or x.stride(0) < x.shape[1]:
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
    return x


def _matmul(
    x: torch.Tensor,
    y: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    fmt: int,
    out_features: int,
) -> native.Matmul:
    call = native.Matmul()
    call.weights, call.x, call.y = weights.data_ptr(), x.data_ptr(), y.data_ptr()
    call.bias = None if bias is None else bias.data_ptr()
    call.x_stride, call.y_stride = x.stride(0), y.stride(0)
    call.tokens, call.in_features, call.out_features = x.shape[0], x.shape[1], out_features
    call.format, call.dtype = fmt, _DTYPES[x.dtype]
    call.device, call.dependent = x.device.index, 1
    return call


def _run(call: native.Matmul, x: torch.Tensor, stream: int) -> None:
    lib, scratch = native.library(), None
    if call.tokens > MOST_WITHOUT_SCRATCH:
        needed = int(lib.kt_matmul_scratch(ctypes.byref(call)))
        if needed < 0:
            _check(needed, "kt_ops_cuda.linear")
        if needed > 0:
            scratch = torch.empty(needed, dtype=torch.uint8, device=x.device)
            call.scratch, call.ticket = scratch.data_ptr(), random.getrandbits(63) + 1
    _check(lib.kt_matmul_run(ctypes.byref(call), stream), "kt_ops_cuda.linear")


MOST_WITHOUT_SCRATCH = 16
"""Up to so many tokens no kernel uses scratch memory, and nobody asks for its size."""


def _linear(
    x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None, fmt: int, out_features: int
) -> torch.Tensor:
    tokens = x.shape[0]
    y = x.new_empty((tokens, out_features))
    if tokens == 0:
        return y
    x = _rows(x)
    if tokens >= DEQUANTISE_FROM:
        dense = _dequantize(weights, fmt, out_features, x.shape[1], x.dtype)
        torch.mm(x, dense.T, out=y)
        return y if bias is None else y.add_(bias[:out_features])
    _run(_matmul(x, y, weights, bias, fmt, out_features), x, _stream(x))
    return y


def _dequantize(
    weights: torch.Tensor, fmt: int, out_features: int, in_features: int, dtype: torch.dtype
) -> torch.Tensor:
    width = padded(in_features, 8)
    out = torch.empty((out_features, width), dtype=dtype, device=weights.device)
    call = native.Dequantize()
    call.weights, call.y = weights.data_ptr(), out.data_ptr()
    call.out_features, call.in_features, call.format = out_features, width, fmt
    call.dtype, call.device = _DTYPES[dtype], weights.device.index
    _check(
        native.library().kt_dequantize_run(ctypes.byref(call), _stream(weights)),
        "kt_ops_cuda.dequantize",
    )
    return out[:, :in_features]


MOST_TOKENS = 16384
"""Longer calls to the experts run in parts, which bounds the scratch memory."""

DIRECT_PAIRS = 32
"""Up to so many (token, expert) pairs, each is a tile of its own and nothing is sorted."""


def tile_tokens(pairs: int, experts: int, hopper: bool) -> int:
    """Tokens of a tile, by what an expert gets on average (measured: benchmarks/cuda/NOTES.md)."""
    average = pairs / experts
    if average <= 8:
        return 8
    if average <= 12 or not hopper:
        return 16
    if average <= 36:
        return 48
    return 64 if average <= 100 else 128


def _experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    bad_id: torch.Tensor,
    gate_up_format: int,
    down_format: int,
    experts: int,
    intermediate: int,
    activation: int,
    alpha: float,
    limit: float,
) -> torch.Tensor:
    tokens, hidden = x.shape
    y = x.new_empty((tokens, hidden))
    if tokens == 0:
        return y
    if tokens > MOST_TOKENS:
        for start in range(0, tokens, MOST_TOKENS):
            part = slice(start, start + MOST_TOKENS)
            y[part] = _experts(
                x[part],
                ids[part],
                scores[part],
                gate_up,
                down,
                gate_up_bias,
                down_bias,
                bad_id,
                gate_up_format,
                down_format,
                experts,
                intermediate,
                activation,
                alpha,
                limit,
            )
        return y
    lib, stream, device = native.library(), _stream(x), x.device.index
    x, ids, scores = _rows(x), ids.contiguous(), scores.contiguous()
    top_k = ids.shape[1]
    pairs = tokens * top_k
    width = padded(intermediate, 8)
    inner = x.new_empty((pairs, width))
    rows = x.new_empty((pairs, hidden))
    first = _matmul(x, inner, gate_up, gate_up_bias, gate_up_format, 2 * padded(intermediate, 32))
    second = _matmul(inner, rows, down, down_bias, down_format, hidden)
    first.activation, first.alpha, first.limit = activation, alpha, limit
    first.columns = width  # rows are written to their padded end, with zeros
    first.expert_bytes = gate_up.numel() // experts
    second.expert_bytes = down.numel() // experts
    if gate_up_bias is not None:
        first.bias_stride = gate_up_bias.shape[1]
    if down_bias is not None:
        second.bias_stride = down_bias.shape[1]
    combine = native.Combine()
    for call in (first, second):
        call.experts, call.tokens = experts, pairs
    scratch = None
    if pairs <= DIRECT_PAIRS:
        for call in (first, second):
            call.ids, call.max_tiles, call.tile_tokens = ids.data_ptr(), pairs, 8
        first.ids_per_token = top_k
    else:
        hopper = torch.cuda.get_device_capability(x.device) == (9, 0)
        tile = tile_tokens(pairs, experts, hopper)
        most = min(pairs, experts + pairs // tile)
        # tiles (4 each, 16-byte aligned), rows, positions, count
        scratch = torch.empty(most * 4 + 2 * pairs + 1, dtype=torch.int32, device=x.device)
        at = scratch.data_ptr()
        route = native.Route()
        route.ids, route.tiles, route.bad_id = ids.data_ptr(), at, bad_id.data_ptr()
        route.rows_in = at + most * 16
        route.position = route.rows_in + pairs * 4
        route.tile_count = route.position + pairs * 4
        route.pairs, route.top_k, route.experts = pairs, top_k, experts
        route.tile_tokens, route.device = tile, device
        _check(lib.kt_route_run(ctypes.byref(route), stream), "kt_ops_cuda.experts")
        for call in (first, second):
            call.tiles, call.tile_count = route.tiles, route.tile_count
            call.max_tiles, call.tile_tokens = most, tile
        first.rows_in = route.rows_in
        combine.position = route.position
    # The routes were complete before `first` could start, so `second` may fetch weights beside it.
    second.early = 1
    _run(first, x, stream)
    _run(second, x, stream)
    combine.rows, combine.weights, combine.ids = rows.data_ptr(), scores.data_ptr(), ids.data_ptr()
    combine.bad_id, combine.y = bad_id.data_ptr(), y.data_ptr()
    combine.tokens, combine.top_k, combine.columns = tokens, top_k, hidden
    combine.experts, combine.dtype = experts, _DTYPES[x.dtype]
    combine.weights_dtype, combine.device = _DTYPES[scores.dtype], device
    _check(lib.kt_combine_run(ctypes.byref(combine), stream), "kt_ops_cuda.experts")
    return y


_LIBRARY.impl("linear", _linear, "CUDA")
_LIBRARY.impl("dequantize", _dequantize, "CUDA")
_LIBRARY.impl("experts", _experts, "CUDA")


def _linear_fake(
    x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None, fmt: int, out_features: int
) -> torch.Tensor:
    return x.new_empty((x.shape[0], out_features))


def _dequantize_fake(
    weights: torch.Tensor, fmt: int, out_features: int, in_features: int, dtype: torch.dtype
) -> torch.Tensor:
    return weights.new_empty((out_features, in_features), dtype=dtype)


def _experts_fake(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_torch_library.register_fake("kt_ops_cuda::linear", _linear_fake)
_torch_library.register_fake("kt_ops_cuda::dequantize", _dequantize_fake)
_torch_library.register_fake("kt_ops_cuda::experts", _experts_fake)

linear = torch.ops.kt_ops_cuda.linear
dequantize = torch.ops.kt_ops_cuda.dequantize
experts = torch.ops.kt_ops_cuda.experts
