"""Torch operators for what surrounds the products of a decode step, over ``csrc/kt_decode.h``.

Like ``ops.py``: fake implementations, allocations through torch only, no synchronisation.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from kt_core.errors import KernelError
from kt_ops_cuda import native, refuse
from kt_ops_cuda.layout import padded

_DTYPES = {torch.float16: native.F16, torch.bfloat16: native.BF16}
_P, _I64, _I32, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

HEAD_DIMS = (64, 128, 256)
MOST_EXPERTS, MOST_CHOSEN = 1024, 32
_QUERIES = 8
"""Query heads of a block of the attention kernel."""


class Norm(ctypes.Structure):
    """``kt_norm`` of ``csrc/kt_decode.h``, field by field."""

    _fields_ = (
        *((name, _P) for name in ("x", "residual", "weight", "sum", "y")),
        *((name, _I64) for name in ("x_stride", "residual_stride")),
        *((name, _I32) for name in ("rows", "columns", "dtype", "device")),
        *((name, _F) for name in ("eps", "offset")),
    )


class Attend(ctypes.Structure):
    """``kt_attend`` of ``csrc/kt_decode.h``, field by field."""

    _fields_ = (
        *((name, _P) for name in ("q", "k", "v", "cosine", "sine", "q_weight", "k_weight")),
        *((name, _P) for name in ("keys", "values", "position", "y", "partial", "arrived")),
        ("head_stride", _I64),
        *((name, _I32) for name in ("q_heads", "kv_heads", "head_dim", "rotary", "room")),
        *((name, _I32) for name in ("window", "chunk", "dtype", "device")),
        *((name, _F) for name in ("eps", "scale")),
    )


class Router(ctypes.Structure):
    """``kt_router`` of ``csrc/kt_decode.h``, field by field."""

    _fields_ = (
        *((name, _P) for name in ("x", "weight", "logits", "scores", "ids")),
        ("x_stride", _I64),
        *((name, _I32) for name in ("tokens", "hidden", "experts", "top_k", "normalize")),
        *((name, _I32) for name in ("dtype", "device")),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    lib = native.library()
    for which, (name, structure) in enumerate(
        (("norm", Norm), ("attend", Attend), ("router", Router))
    ):
        function = getattr(lib, f"kt_{name}_run")
        function.argtypes = (ctypes.POINTER(structure), ctypes.c_void_p)
        if lib.kt_decode_struct_size(which) != ctypes.sizeof(structure):
            raise KernelError.of(
                "KT550",
                "the compiled library of kt-ops-cuda belongs to another version of its Python files",
                facts=(f"{structure.__name__} differs in size",),
                help="pip install --force-reinstall kt-ops-cuda",
            )
    return lib


def _run(name: str, call: ctypes.Structure, device: torch.device) -> None:
    stream = int(torch.cuda.current_stream(device).cuda_stream)
    code = getattr(_library(), f"kt_{name}_run")(ctypes.byref(call), stream)
    if code != 0:
        raise refuse.launch_failed(f"kt_ops_cuda.{name}", code, native.explain(code))


_torch_library: Any = torch.library
_LIBRARY = _torch_library.Library("kt_ops_cuda", "FRAGMENT")
_LIBRARY.define("rms_norm(Tensor x, Tensor weight, float eps, float offset) -> Tensor")
_LIBRARY.define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, float offset)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "attend(Tensor q, Tensor k, Tensor v, Tensor cosine, Tensor sine, Tensor? q_weight,"
    " Tensor? k_weight, Tensor(a!) keys, Tensor(b!) values, Tensor position, Tensor(c!) partial,"
    " Tensor(d!) arrived, int chunk, int window, float eps, float scale) -> Tensor"
)
_LIBRARY.define(
    "router(Tensor x, Tensor weight, int top_k, bool normalize) -> (Tensor, Tensor, Tensor)"
)


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` ``(rows, columns)`` as the kernels read it: columns adjacent, rows 16-byte aligned."""
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
        if x.data_ptr() % 16:
            x = x.clone()
    return x


def _norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    columns = x.shape[-1]
    rows = aligned_rows(x.reshape(-1, columns))
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    call = Norm(weight=weight.data_ptr(), x=rows.data_ptr(), y=y.data_ptr(), eps=eps, offset=offset)
    call.x_stride, call.rows, call.columns = rows.stride(0), rows.shape[0], columns
    call.dtype, call.device = _DTYPES[x.dtype], x.device.index
    total = y
    if residual is not None:
        more = aligned_rows(residual.reshape(-1, columns))
        total = torch.empty_like(y)
        call.residual, call.residual_stride, call.sum = (
            more.data_ptr(),
            more.stride(0),
            total.data_ptr(),
        )
    _run("norm", call, x.device)
    return total, y


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    return _norm(x, None, weight, eps, offset)[1]


def chunk_of(room: int) -> int:
    """Cache rows a block of the attention kernel takes: more blocks as long as they fill a GPU."""
    return min(1024, max(64, padded(room // 64, 64)))


def attend_scratch(
    q_heads: int, kv_heads: int, head_dim: int, room: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``attend`` leaves partial results in, and counts blocks with; for one call at a time."""
    parts = kv_heads * -(-(q_heads // kv_heads) // _QUERIES)
    blocks = -(-room // chunk_of(room))
    partial = torch.empty(parts * blocks * _QUERIES * (head_dim + 2), device=device)
    return partial, torch.zeros(parts, dtype=torch.int32, device=device)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    keys: torch.Tensor,
    values: torch.Tensor,
    position: torch.Tensor,
    partial: torch.Tensor,
    arrived: torch.Tensor,
    chunk: int,
    window: int,
    eps: float,
    scale: float,
) -> torch.Tensor:
    _, kv_heads, room, head_dim = keys.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    cosine, sine = cosine.contiguous(), sine.contiguous()
    y = torch.empty_like(q)
    call = Attend(
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        cosine=cosine.data_ptr(),
        sine=sine.data_ptr(),
        q_weight=None if q_weight is None else q_weight.data_ptr(),
        k_weight=None if k_weight is None else k_weight.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        position=position.data_ptr(),
        y=y.data_ptr(),
        partial=partial.data_ptr(),
        arrived=arrived.data_ptr(),
        head_stride=keys.stride(1),
        q_heads=q.numel() // head_dim,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=cosine.shape[-1],
        room=room,
        window=window,
        chunk=chunk,
        dtype=_DTYPES[q.dtype],
        device=q.device.index,
        eps=eps,
        scale=scale,
    )
    _run("attend", call, q.device)
    return y


def _router(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, normalize: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = aligned_rows(x)
    tokens, hidden = x.shape
    logits = x.new_empty((tokens, weight.shape[0]), dtype=torch.float32)
    scores = x.new_empty((tokens, top_k))
    ids = x.new_empty((tokens, top_k), dtype=torch.int64)
    call = Router(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        logits=logits.data_ptr(),
        scores=scores.data_ptr(),
        ids=ids.data_ptr(),
        x_stride=x.stride(0),
        tokens=tokens,
        hidden=hidden,
        experts=weight.shape[0],
        top_k=top_k,
        normalize=normalize,
        dtype=_DTYPES[x.dtype],
        device=x.device.index,
    )
    _run("router", call, x.device)
    return logits, scores, ids


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _norm(x, residual, weight, eps, offset)


_LIBRARY.impl("rms_norm", _rms_norm, "CUDA")
_LIBRARY.impl("add_rms_norm", _add_rms_norm, "CUDA")
_LIBRARY.impl("attend", _attend, "CUDA")
_LIBRARY.impl("router", _router, "CUDA")


def _like(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _two_like(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(x), _like(x)


def _router_fake(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, normalize: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = x.shape[0]
    return (
        x.new_empty((tokens, weight.shape[0]), dtype=torch.float32),
        x.new_empty((tokens, top_k)),
        x.new_empty((tokens, top_k), dtype=torch.int64),
    )


for _name, _fake in (
    ("rms_norm", _like),
    ("add_rms_norm", _two_like),
    ("attend", _like),
    ("router", _router_fake),
):
    _torch_library.register_fake(f"kt_ops_cuda::{_name}", _fake)

rms_norm = torch.ops.kt_ops_cuda.rms_norm
add_rms_norm = torch.ops.kt_ops_cuda.add_rms_norm
attend = torch.ops.kt_ops_cuda.attend
router = torch.ops.kt_ops_cuda.router
