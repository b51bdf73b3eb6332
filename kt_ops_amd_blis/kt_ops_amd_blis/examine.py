"""Load a library in another process and report what it is.

Run as ``python -I -S examine.py LIBRARY [PRELOAD...]``; prints a JSON object, and another with
what it found out later. It uses the standard library alone, so that it starts fast, and its own
process, so that a library which crashes, prints or starts threads does so elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

GEMM = "aocl_gemm_s8s8s32os32"
REORDER = "aocl_reorder_s8s8s32os32"
REORDER_SIZE = "aocl_get_reorder_buf_size_s8s8s32os32"
REQUIRED = (GEMM, REORDER, REORDER_SIZE)
"""What this backend calls."""

GROUP_GEMM = "aocl_gemm_s8s8s32of32_sym_quant"
GROUP_REORDER = "aocl_reorder_s8s8s32os32_sym_quant"
GROUP_REORDER_SIZE = "aocl_get_reorder_buf_size_s8s8s32os32_sym_quant"
"""What it calls as well, for group scales, where :func:`group_product_is_right`."""

_SIZE = 64  # one panel: the smallest product whose layout is not a special case


def open_library(path: str, preload: tuple[str, ...]) -> ctypes.CDLL:
    """Open ``path`` after the libraries it needs that lie beside it.

    Deep binding makes a library look for OpenMP among its own dependencies first. Otherwise a
    process that holds torch's OpenMP runtime as well would mix the two.
    """
    for needed in preload:
        ctypes.CDLL(needed, mode=os.RTLD_NOW)
    return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)


def describe(library: ctypes.CDLL) -> dict[str, object]:
    """Return the library's own words about itself: version, integer width, threading."""
    facts: dict[str, object] = {"version": "", "int_bits": 64, "threading": "unknown"}
    if hasattr(library, "dlp_version_query"):  # AOCL-DLP has 64-bit sizes only
        parts = [ctypes.c_int() for _ in range(3)]
        library.dlp_version_query(*(ctypes.byref(part) for part in parts))
        facts["version"] = "AOCL-DLP " + ".".join(str(part.value) for part in parts)
        return facts
    if hasattr(library, "bli_info_get_version_str"):
        library.bli_info_get_version_str.restype = ctypes.c_char_p
        facts["version"] = (library.bli_info_get_version_str() or b"").decode("utf-8", "replace")
    if hasattr(library, "bli_info_get_int_type_size"):
        facts["int_bits"] = int(library.bli_info_get_int_type_size())
    for name in ("openmp", "pthreads"):
        query = getattr(library, f"bli_info_get_enable_{name}", None)
        if query is not None and query():
            facts["threading"] = name
            break
    else:
        if hasattr(library, "bli_info_get_enable_openmp"):
            facts["threading"] = "none"
    return facts


def product_is_right(library: ctypes.CDLL) -> bool:
    """Multiply two small matrices, negative values included, and compare with integer arithmetic."""
    n = _SIZE
    size = getattr(library, REORDER_SIZE)
    size.restype = ctypes.c_uint64
    dim, char = ctypes.c_int64, ctypes.c_char
    size.argtypes = [char, char, char, dim, dim, ctypes.c_void_p]
    reorder, gemm = getattr(library, REORDER), getattr(library, GEMM)
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    reorder.restype = gemm.restype = None
    reorder.argtypes = [char, char, char, pointer, pointer, dim, dim, dim, pointer]
    gemm.argtypes = [
        *(char, char, char, dim, dim, dim, int32, pointer, dim, char),
        *(pointer, dim, char, int32, pointer, dim, pointer),
    ]
    a = [(i * 37) % 255 - 127 for i in range(2 * n)]
    b = [(i * 73) % 255 - 127 for i in range(n * n)]
    matrix_a, matrix_b = (ctypes.c_int8 * (2 * n))(*a), (ctypes.c_int8 * (n * n))(*b)
    matrix_c = (ctypes.c_int32 * (2 * n))(*([7] * (2 * n)))
    needed = size(b"r", b"n", b"B", n, n, None)
    if needed < n * n or needed > 1 << 24:
        return False
    memory = ctypes.create_string_buffer(needed + 64)
    reordered = (ctypes.addressof(memory) + 63) // 64 * 64
    reorder(b"r", b"n", b"B", matrix_b, reordered, n, n, n, None)
    gemm(
        *(b"r", b"n", b"n", 2, n, n, 1, matrix_a, n, b"n"),
        *(reordered, n, b"r", 0, matrix_c, n, None),
    )
    expected = [
        sum(a[r * n + k] * b[k * n + c] for k in range(n)) for r in range(2) for c in range(n)
    ]
    return list(matrix_c) == expected


class _Scales(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("length", ctypes.c_int64), ("type", ctypes.c_int))


class _Group(ctypes.Structure):
    _fields_ = (
        ("group_size", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("a", ctypes.POINTER(_Scales)),
        ("b", ctypes.POINTER(_Scales)),
        ("zero_points", ctypes.c_void_p * 2),
    )


class _PostOperations(ctypes.Structure):
    _fields_ = (
        ("operations", ctypes.c_void_p * 5),
        ("count", ctypes.c_int64),
        ("sequence", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("group", ctypes.POINTER(_Group)),
        ("eltwise_count", ctypes.c_int64),
    )


def group_product_is_right(library: ctypes.CDLL) -> bool:
    """Try the product with group scales, whose argument structures differ between libraries.

    With other structures than these it computes something else, or ends this process: both mean no.
    """
    names = (GROUP_GEMM, GROUP_REORDER, GROUP_REORDER_SIZE)
    if not all(hasattr(library, name) for name in (*names, "bli_info_get_version_str")):
        return False
    gemm, reorder, size = (getattr(library, name) for name in names)
    n, k, group = _SIZE, 2 * _SIZE, _SIZE
    a = [(i * 37) % 255 - 127 for i in range(2 * k)]
    b = [(i * 73) % 255 - 127 for i in range(k * n)]
    a_scales, b_scales = [0.5, 2.0, 1.0, 0.25], [1.0 + i % 3 for i in range(2 * n)]
    matrix_a, matrix_b = (ctypes.c_int8 * (2 * k))(*a), (ctypes.c_int8 * (n * k))(*b)
    floats_a, floats_b = (ctypes.c_float * 4)(*a_scales), (ctypes.c_float * (2 * n))(*b_scales)
    matrix_c = (ctypes.c_float * (2 * n))()
    char, dim, pointer = ctypes.c_char, ctypes.c_int64, ctypes.c_void_p
    size.restype, reorder.restype, gemm.restype = ctypes.c_uint64, None, None
    size.argtypes = [char, char, char, dim, dim, pointer, pointer]
    reorder.argtypes = [char, char, char, pointer, pointer, dim, dim, dim, pointer, pointer]
    gemm.argtypes = [
        *(char, char, char, dim, dim, dim, ctypes.c_int32, pointer, dim, char),
        *(pointer, dim, char, ctypes.c_int32, pointer, dim, pointer),
    ]
    request = dim(group)
    needed = size(b"r", b"t", b"B", k, n, ctypes.addressof(request), None)
    if needed < n * k or needed > 1 << 24:
        return False
    memory = ctypes.create_string_buffer(needed + 64)
    reordered = (ctypes.addressof(memory) + 63) // 64 * 64
    reorder(b"r", b"t", b"B", matrix_b, reordered, k, n, k, ctypes.addressof(request), None)
    scales_a = _Scales(ctypes.addressof(floats_a), 4, 0)
    scales_b = _Scales(ctypes.addressof(floats_b), 2 * n, 0)
    operation = _Group(group, 1, ctypes.pointer(scales_a), ctypes.pointer(scales_b))
    post = _PostOperations(group=ctypes.pointer(operation))
    gemm(
        *(b"r", b"n", b"n", 2, n, k, 1, matrix_a, k, b"n"),
        *(reordered, n, b"r", 0, matrix_c, n, ctypes.addressof(post)),
    )
    expected = [
        sum(
            a_scales[r * 2 + g]
            * b_scales[g * n + c]
            * sum(a[r * k + i] * b[c * k + i] for i in range(g * group, (g + 1) * group))
            for g in range(2)
        )
        for r in range(2)
        for c in range(n)
    ]
    return list(matrix_c) == expected  # the scales are such that every sum is exact


def main(arguments: list[str]) -> int:
    """Write the report of ``arguments[0]`` to the standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not mix with the report
    report: dict[str, object] = {}
    try:
        library = open_library(arguments[0], tuple(arguments[1:]))
        report |= describe(library)
        if report["int_bits"] == 64:  # with another width the call itself would be wrong
            report["right"] = product_is_right(library)
    except OSError as error:
        report["error"] = str(error)
    out.write(json.dumps(report) + "\n")
    out.flush()
    if report.get("right"):
        out.write(json.dumps({"groups": group_product_is_right(library)}) + "\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
