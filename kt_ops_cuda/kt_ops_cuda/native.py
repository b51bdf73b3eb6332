"""The compiled library: loading it, and its C interface as ctypes sees it.

Importing this module loads nothing; :func:`library` does, once per process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from contextlib import ExitStack

from kt_core.errors import KernelError

ABI = 2
LIBRARY = "libkt_ops_cuda.so.1"

W4_G128, W4_G128_OFFSET, W4_G32_OFFSET, Q4_K, W8_G128, W8_G32, Q5_K, Q6_K, IQ4_XS, MXFP4 = range(10)
F16, BF16, F32 = range(3)
NONE, SILU, GELU, GELU_TANH, SWIGLU_OAI, RELU = range(6)

_keep_open = ExitStack()


class Matmul(ctypes.Structure):
    """``kt_matmul`` of ``csrc/kt_ops_cuda.h``, field by field."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p),
        ("tile_count", ctypes.c_void_p),
        ("rows_in", ctypes.c_void_p),
        ("rows_out", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("ticket", ctypes.c_uint64),
        ("x_stride", ctypes.c_int64),
        ("y_stride", ctypes.c_int64),
        ("expert_bytes", ctypes.c_int64),
        ("bias_stride", ctypes.c_int64),
        ("max_tiles", ctypes.c_int32),
        ("ids_per_token", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("out_features", ctypes.c_int32),
        ("in_features", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("limit", ctypes.c_float),
        ("tile_tokens", ctypes.c_int32),
        ("split", ctypes.c_int32),
        ("stages", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("warps", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("early", ctypes.c_int32),
        ("dependent", ctypes.c_int32),
    )


class Route(ctypes.Structure):
    """``kt_route`` of ``csrc/kt_ops_cuda.h``, field by field."""

    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p),
        ("tile_count", ctypes.c_void_p),
        ("rows_in", ctypes.c_void_p),
        ("position", ctypes.c_void_p),
        ("bad_id", ctypes.c_void_p),
        ("pairs", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("tile_tokens", ctypes.c_int32),
        ("device", ctypes.c_int32),
    )


class Combine(ctypes.Structure):
    """``kt_combine`` of ``csrc/kt_ops_cuda.h``, field by field."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("position", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("bad_id", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("tokens", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("weights_dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
    )


class Dequantize(ctypes.Structure):
    """``kt_dequantize`` of ``csrc/kt_ops_cuda.h``, field by field."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("out_features", ctypes.c_int32),
        ("in_features", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        KernelError: KT550 when it is missing, does not load or speaks another ABI.
    """
    try:
        resource = importlib.resources.files("kt_ops_cuda") / LIBRARY
        path = _keep_open.enter_context(importlib.resources.as_file(resource))
        lib = ctypes.CDLL(str(path))
        abi = int(lib.kt_abi())
    except (OSError, AttributeError) as error:
        raise KernelError.of(
            "KT550",
            "the compiled library of kt-ops-cuda does not load",
            facts=(str(error),),
            help="pip install --force-reinstall kt-ops-cuda",
        ) from error
    if abi != ABI:
        raise KernelError.of(
            "KT550",
            "the compiled library of kt-ops-cuda belongs to another version of its Python files",
            facts=(f"library ABI {abi}, expected {ABI}",),
            help="pip install --force-reinstall kt-ops-cuda",
        )
    lib.kt_matmul_run.argtypes = (ctypes.POINTER(Matmul), ctypes.c_void_p)
    lib.kt_route_run.argtypes = (ctypes.POINTER(Route), ctypes.c_void_p)
    lib.kt_combine_run.argtypes = (ctypes.POINTER(Combine), ctypes.c_void_p)
    lib.kt_dequantize_run.argtypes = (ctypes.POINTER(Dequantize), ctypes.c_void_p)
    for structure, number in ((Matmul, 0), (Route, 1), (Combine, 2), (Dequantize, 3)):
        if lib.kt_struct_size(number) != ctypes.sizeof(structure):
            raise KernelError.of(
                "KT550",
                "the compiled library of kt-ops-cuda belongs to another version of its Python files",
                facts=(f"{structure.__name__} differs in size",),
                help="pip install --force-reinstall kt-ops-cuda",
            )
    lib.kt_matmul_scratch.argtypes = (ctypes.POINTER(Matmul),)
    lib.kt_matmul_scratch.restype = ctypes.c_int64
    lib.kt_matmul_tile.argtypes = (ctypes.c_int32, ctypes.c_int32)
    lib.kt_error_string.argtypes = (ctypes.c_int,)
    lib.kt_error_string.restype = ctypes.c_char_p
    lib.kt_build.restype = ctypes.c_char_p
    lib.kt_device_capability.argtypes = (ctypes.c_int,)
    return lib


def explain(code: int) -> str:
    """Return the library's own words for a return code."""
    return str(library().kt_error_string(code).decode("utf-8", "replace"))
