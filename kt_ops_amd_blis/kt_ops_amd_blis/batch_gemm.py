"""The batch-GEMM interface that KTransformers' int8 backends implement, on numpy arrays.

Six functions with the names and the argument order of that interface. Differences, all of them
checks: orders, sizes and leading dimensions are proven against the arrays before BLIS is called;
offsets, which BLIS has no use for, must be zero; ``alpha`` and ``beta`` must be whole numbers,
since BLIS takes them as int32. A is int8, C is int32, B is int8 as it lies or reordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kt_core.errors import KernelError
from kt_ops_amd_blis import native
from kt_ops_amd_blis.library import Library, library
from kt_ops_amd_blis.native import ffi, lib

Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]

# CBLAS' numbers are accepted beside the letters.
_ORDERS = {"r": b"r", "R": b"r", 101: b"r", "c": b"c", "C": b"c", 102: b"c"}
_TRANSPOSES = {"n": b"n", "N": b"n", 111: b"n", "t": b"t", "T": b"t", 112: b"t"}


@dataclass(frozen=True)
class ReorderedB:
    """A matrix ``(k, n)`` in the panels of the BLIS that made it; good for row-major products."""

    k: int
    n: int
    data: Int8s


def get_reorder_B_size(layout: str | int, transb: str | int, k: int, n: int) -> int:  # noqa: N802
    """Return the bytes that ``B`` ``(k, n)`` takes when reordered.

    Raises:
        KernelError: KT546 for sizes it cannot be, KT530 to KT536 if there is no BLIS.
    """
    what = "get_reorder_B_size"
    order, trans = _order(what, layout), _transpose(what, transb)
    return _reorder_size(library(), order, trans, k, n, what)


def reorder_B_gemm(  # noqa: N802
    layout: str | int, transb: str | int, k: int, n: int, ldb: int, b: Int8s
) -> ReorderedB:
    """Return ``B`` ``(k, n)`` reordered; ``b`` holds it as ``layout`` and ``transb`` say.

    Raises:
        KernelError: KT546 for sizes that do not fit the array, KT530 to KT536 if there is no BLIS.
    """
    what, blis = "reorder_B_gemm", library()
    order, trans = _order(what, layout), _transpose(what, transb)
    size = _reorder_size(blis, order, trans, k, n, what)
    _fits(what, "b", b, np.int8, order, trans, k, n, ldb)
    out = native.empty(size, np.int8, what)
    status = lib.kt_reorder_b(
        *(blis.table, order, trans, k, n, ldb),
        *(ffi.cast("int8_t *", b.ctypes.data), ffi.cast("int8_t *", out.ctypes.data)),
    )
    _checked(status, what)
    return ReorderedB(k, n, out)


def prefill_cblas_gemm_s8s8s32(
    layout: str | int,
    transa: str | int,
    transb: str | int,
    offsetc: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Int8s,
    lda: int,
    oa: int,
    b: Int8s | ReorderedB,
    ldb: int,
    ob: int,
    beta: float,
    c: Int32s,
    ldc: int,
    oc: int,
    *,
    threads: int | None = None,
) -> None:
    """``C = alpha * A B + beta * C`` on all of this process's threads (or ``threads``).

    Raises:
        KernelError: KT546 for arguments that do not fit together or the arrays.
    """
    arguments = (layout, transa, transb, m, n, k, alpha, a, lda, oa, b, ldb, ob, beta, c, ldc, oc)
    _gemm("prefill_cblas_gemm_s8s8s32", lib.kt_prefill_gemm_s8s8s32, threads, *arguments)


def decode_cblas_gemm_s8s8s32(
    layout: str | int,
    transa: str | int,
    transb: str | int,
    offsetc: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Int8s,
    lda: int,
    oa: int,
    b: Int8s | ReorderedB,
    ldb: int,
    ob: int,
    beta: float,
    c: Int32s,
    ldc: int,
    oc: int,
    *,
    threads: int | None = None,
) -> None:
    """As :func:`prefill_cblas_gemm_s8s8s32`, with no more threads than reading ``B`` keeps busy.

    Raises:
        KernelError: KT546 for arguments that do not fit together or the arrays.
    """
    arguments = (layout, transa, transb, m, n, k, alpha, a, lda, oa, b, ldb, ob, beta, c, ldc, oc)
    _gemm("decode_cblas_gemm_s8s8s32", lib.kt_decode_gemm_s8s8s32, threads, *arguments)


def prefill_int4_cblas_gemm_s8s8s32(*_arguments: object, **_options: object) -> NoReturn:
    """Raise ``KernelError`` KT537: this backend computes in int8 only."""
    _int8_only(lib.kt_prefill_int4_gemm_s8s8s32(), "prefill_int4_cblas_gemm_s8s8s32")


def decode_int4_cblas_gemm_s8s8s32(*_arguments: object, **_options: object) -> NoReturn:
    """Raise ``KernelError`` KT537: this backend computes in int8 only."""
    _int8_only(lib.kt_decode_int4_gemm_s8s8s32(), "decode_int4_cblas_gemm_s8s8s32")


def _int8_only(status: int, what: str) -> NoReturn:
    native.check(status, what)
    raise _wrong(what, "is not implemented")  # the entry point always fails; this is for the reader


def _gemm(
    what: str,
    function: Any,
    threads: int | None,
    layout: str | int,
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Int8s,
    lda: int,
    oa: int,
    b: Int8s | ReorderedB,
    ldb: int,
    ob: int,
    beta: float,
    c: Int32s,
    ldc: int,
    oc: int,
) -> None:
    blis = library()
    order = _order(what, layout)
    trans_a, trans_b = _transpose(what, transa), _transpose(what, transb)
    if min(m, n, k) < 1:
        raise _wrong(what, f"m={m}, n={n}, k={k} must be positive")
    if oa or ob or oc:
        raise _wrong(what, f"the offsets oa={oa}, ob={ob}, oc={oc} must be zero")
    if alpha != int(alpha) or beta != int(beta):
        raise _wrong(what, f"alpha={alpha} and beta={beta} must be whole numbers")
    _fits(what, "a", a, np.int8, order, trans_a, m, k, lda)
    _fits(what, "c", c, np.int32, order, b"n", m, n, ldc)
    if not c.flags.writeable:
        raise _wrong(what, "c is read-only")
    if isinstance(b, ReorderedB):
        if (b.k, b.n) != (k, n):
            raise _wrong(what, f"b was reordered as {b.k} by {b.n}, not {k} by {n}")
        if order != b"r" or trans_b != b"n":
            raise _wrong(what, "a reordered b goes with row-major order and no transpose")
        data, ldb, kind = b.data, n, b"r"
    else:
        _fits(what, "b", b, np.int8, order, trans_b, k, n, ldb)
        data, kind = b, b"n"
    status = function(
        *(blis.table, native.threads() if threads is None else threads, order, trans_a, trans_b),
        *(m, n, k, int(alpha), ffi.cast("int8_t *", a.ctypes.data), lda, oa),
        *(ffi.cast("int8_t *", data.ctypes.data), ldb, ob, kind, int(beta)),
        *(ffi.cast("int32_t *", c.ctypes.data), ldc, oc),
    )
    _checked(status, what)


def _reorder_size(blis: Library, order: bytes, trans: bytes, k: int, n: int, what: str) -> int:
    size = ffi.new("int64_t *")
    if min(k, n) < 1:
        raise _wrong(what, f"k={k}, n={n} must be positive")
    _checked(lib.kt_reorder_b_size(blis.table, order, trans, k, n, size), what)
    return int(size[0])


def _fits(
    what: str,
    name: str,
    array: npt.NDArray[Any],
    dtype: type[np.generic],
    order: bytes,
    trans: bytes,
    rows: int,
    columns: int,
    ld: int,
) -> None:
    """Check that ``array`` holds a ``(rows, columns)`` matrix with leading dimension ``ld``."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise _wrong(what, f"{name} must be a contiguous {dtype.__name__} array")
    # Row-major rows and transposed column-major columns lie along the second dimension.
    lines, length = (rows, columns) if (order == b"r") == (trans == b"n") else (columns, rows)
    if ld < length:
        raise _wrong(
            what, f"the leading dimension of {name} is {ld}, but its lines have {length} values"
        )
    if array.size < (lines - 1) * ld + length:
        raise _wrong(
            what, f"{name} has {array.size} values, fewer than {lines} lines of {length} take"
        )


def _order(what: str, layout: str | int) -> bytes:
    if layout not in _ORDERS:
        raise _wrong(what, f"the order {layout!r} is neither 'r' nor 'c'")
    return _ORDERS[layout]


def _transpose(what: str, trans: str | int) -> bytes:
    if trans not in _TRANSPOSES:
        raise _wrong(what, f"the transpose {trans!r} is neither 'n' nor 't'")
    return _TRANSPOSES[trans]


def _checked(status: int, what: str) -> None:
    if status == lib.KT_BAD_ARGUMENT:
        raise _wrong(what, "its arguments do not fit together")
    native.check(status, what)


def _wrong(what: str, why: str) -> KernelError:
    return KernelError(KernelError.of("KT546", f"{what}: {why}").problems)
