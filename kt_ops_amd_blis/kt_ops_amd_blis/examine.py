"""Load a library in another process and report what it is.

Run as ``python -I -S examine.py LIBRARY [PRELOAD...]``; prints one JSON object. It uses the
standard library alone, so that it starts fast, and its own process, so that a library which
crashes, prints or starts threads does so elsewhere.
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
    json.dump(report, out)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
