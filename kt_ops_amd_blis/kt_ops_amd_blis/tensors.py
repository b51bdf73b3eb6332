"""Check torch tensors and hand their memory to native code."""

from __future__ import annotations

from typing import Any

import torch

from kt_core.errors import KernelError
from kt_ops_amd_blis.native import ffi, lib

DTYPES = {torch.float32: lib.KT_F32, torch.float16: lib.KT_F16, torch.bfloat16: lib.KT_BF16}
"""Activation types the kernels read and write."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def rows_of(x: torch.Tensor, width: int, name: str) -> torch.Tensor:
    """Return ``x`` as rows of ``width`` adjacent values, copied only if they are not adjacent.

    Raises:
        KernelError: KT540 for a wrong device, type or shape.
    """
    if x.device.type != "cpu":
        raise KernelError.of("KT540", f"{name} computes on the CPU, but was given {x.device}")
    if x.dtype not in DTYPES:
        raise KernelError.of(
            "KT540",
            f"{name} was given activations of type {_name(x.dtype)}",
            facts=[f"accepted: {', '.join(_name(dtype) for dtype in DTYPES)}"],
        )
    if x.dim() != 2 or x.shape[1] != width:
        raise KernelError.of(
            "KT540", f"{name} was given activations of shape {list(x.shape)}, not [tokens, {width}]"
        )
    if x.is_contiguous():
        return x
    # A row stride below the width (an expanded row, say) is not something native code walks over.
    if x.stride(1) != 1 or (x.shape[0] > 1 and x.stride(0) < width):
        return x.contiguous()
    return x


def routing(
    index: torch.Tensor, weights: torch.Tensor, tokens: int, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return expert ids as int64 and their weights as float32, both contiguous ``(tokens, k)``.

    Raises:
        KernelError: KT540 for a wrong device, type or shape.
    """
    if index.device.type != "cpu" or weights.device.type != "cpu":
        raise KernelError.of("KT540", f"{name} was given a routing that is not on the CPU")
    if index.dtype not in _INTEGERS or not weights.dtype.is_floating_point:
        raise KernelError.of(
            "KT540",
            f"{name} was given expert ids of type {_name(index.dtype)} with weights of type "
            f"{_name(weights.dtype)}",
            facts=["accepted: integer ids, floating weights"],
        )
    if index.dim() != 2 or index.shape[0] != tokens or weights.shape != index.shape:
        raise KernelError.of(
            "KT540",
            f"{name} was given ids {list(index.shape)} and weights {list(weights.shape)} for "
            f"{tokens} tokens",
        )
    if index.dtype is not torch.int64 or not index.is_contiguous():
        index = index.to(torch.int64).contiguous()
    if weights.dtype is not torch.float32 or not weights.is_contiguous():
        weights = weights.detach().to(torch.float32).contiguous()
    return index, weights


def address(tensor: torch.Tensor, kind: str = "void *") -> Any:
    """Return the address of the first value, as a pointer of C type ``kind``."""
    return ffi.cast(kind, tensor.data_ptr())


def stride_of(x: torch.Tensor, width: int) -> int:
    """Return the row stride; that of a single row may be anything in torch, so it is the width."""
    return int(x.stride(0)) if x.shape[0] > 1 else width


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
