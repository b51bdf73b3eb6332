"""From kt's tensors to the structs of the C interface, with every check that they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from kt_core.errors import KernelError
from kt_core.weights import LAYOUTS, PackedTensor, QuantType, TensorInfo
from kt_ops_cpu.formats import CODEBOOKS, FORMATS
from kt_ops_cpu.library import check, native

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
DTYPES = tuple(_DTYPES)
"""Activation dtypes the kernels take and give, as ``enum kt_cpu_dtype``."""


def reasons(tensors: Sequence[TensorInfo], dtype: torch.dtype) -> list[str]:
    """Return why these stored tensors or this activation dtype cannot be served, at plan time."""
    found = []
    for info in tensors:
        if info.type not in FORMATS:
            found.append(f"{info.name} is stored as {info.type}, which kt-ops-cpu does not serve")
        elif info.shape and info.shape[-1] % LAYOUTS[info.type].block_size:
            found.append(
                f"{info.name} has rows of {info.shape[-1]} values, not whole blocks of "
                f"{LAYOUTS[info.type].block_size} ({info.type})"
            )
    if dtype not in _DTYPES:
        found.append(_unfit(dtype))
    return found


def _unfit(dtype: torch.dtype) -> str:
    served = ", ".join(str(known) for known in _DTYPES)
    return f"activations are {dtype}; it takes {served}".replace("torch.", "")


def matrix(weight: PackedTensor, shape: tuple[int, int], name: str) -> Any:
    """Return ``struct kt_cpu_matrix *`` over ``weight``, which the caller keeps alive.

    Raises:
        KernelError: KT502 if the shape is not ``shape`` or the bytes do not match it, KT513 for a
            type that is not served.
    """
    if weight.type not in FORMATS:
        raise KernelError.of(
            "KT513",
            f"{name}: {weight.name} is stored as {weight.type}, which kt-ops-cpu cannot compute on",
            facts=[f"served: {', '.join(FORMATS)}"],
            help="name kt_core.torch_linear or kt_core.torch_experts, which dequantise",
        )
    layout = LAYOUTS[weight.type]
    data = weight.data
    if tuple(weight.shape) != shape or shape[1] % layout.block_size or shape[1] < 1:
        raise KernelError.of(
            "KT502",
            f"{name}: {weight.name} is {list(weight.shape)} of {weight.type}; "
            f"{list(shape)} in whole blocks of {layout.block_size} is needed",
        )
    row_bytes = shape[1] // layout.block_size * layout.block_bytes
    if data.dtype != np.uint8 or data.shape != (shape[0], row_bytes) or data.strides[1] != 1:
        raise KernelError.of(
            "KT502",
            f"{name}: {weight.name} should hold {shape[0]} rows of {row_bytes} bytes, "
            f"it holds {list(data.shape)} of {data.dtype}",
        )
    if weight.type in CODEBOOKS:
        _set_codebook(weight.type)
    ffi = native().ffi
    return ffi.new(
        "struct kt_cpu_matrix *",
        {
            "data": ffi.cast("void *", data.ctypes.data),
            "rows": shape[0],
            "cols": shape[1],
            "row_bytes": data.strides[0] if shape[0] > 1 else row_bytes,
            "type": FORMATS[weight.type],
        },
    )


@cache
def _set_codebook(type: QuantType) -> None:
    from kt_ops_cpu.formats import codebook

    values = codebook(type)
    module = native()
    pointer = module.ffi.cast("int8_t *", values.ctypes.data)
    check(module.lib.kt_cpu_codebook_set(FORMATS[type], pointer, values.size), f"{type} codebook")


def bias_pointer(bias: torch.Tensor | None, shape: tuple[int, ...], name: str) -> tuple[Any, Any]:
    """Return a float32 bias to keep alive and the pointer to it (both null if there is none).

    Raises:
        KernelError: KT502 if its shape is not ``shape``.
    """
    ffi = native().ffi
    if bias is None:
        return None, ffi.NULL
    if tuple(bias.shape) != shape:
        raise KernelError.of(
            "KT502", f"{name}: a bias is {list(bias.shape)}; {list(shape)} is needed"
        )
    kept = bias.detach().to("cpu", torch.float32).contiguous()
    return kept, ffi.cast("float *", kept.data_ptr())


def check_activations(x: torch.Tensor, features: int, name: str) -> None:
    """Refuse activations that the kernels cannot read.

    Raises:
        KernelError: KT505.
    """
    if not x.is_cpu or x.layout is not torch.strided:
        raise KernelError.of(
            "KT505",
            f"{name}: activations are {x.layout} on {x.device}; dense ones on cpu needed",
        )
    if x.dtype not in _DTYPES:
        raise KernelError.of("KT505", f"{name}: {_unfit(x.dtype)}")
    if x.dim() < 1 or x.size(-1) != features:
        raise KernelError.of(
            "KT505", f"{name}: activations are {list(x.shape)}; rows of {features} are needed"
        )


@cache
def pointer_types() -> tuple[Any, Any, Any, Any]:
    """Return ``ffi.cast`` and the types ``void *``, ``int64_t *`` and ``float *``.

    A decoding step makes dozens of calls, and naming a type costs more than casting to it.
    """
    ffi = native().ffi
    return ffi.cast, *(ffi.typeof(name) for name in ("void *", "int64_t *", "float *"))


def set_rows(rows: Any, x: torch.Tensor) -> None:
    """Fill a ``struct kt_cpu_rows`` with a 2-d tensor whose rows are contiguous."""
    cast, void, _, _ = pointer_types()
    rows.data = cast(void, x.data_ptr())
    rows.row_bytes = x.stride(0) * x.element_size()
    rows.dtype = _DTYPES[x.dtype]


def parts(tokens: int, most: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield ``tensors``, whose first dimension is ``tokens``, in parts of at most ``most`` rows."""
    if 0 < tokens <= most:
        yield tensors
        return
    for first in range(0, tokens, most):
        yield tuple(tensor[first : first + most] for tensor in tensors)


def row_major(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, or a copy of it if its rows are not contiguous or overlap."""
    if x.is_contiguous():
        return x
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        return x.contiguous()
    return x if x.shape[0] < 2 or x.stride(0) >= x.shape[-1] else x.contiguous()
