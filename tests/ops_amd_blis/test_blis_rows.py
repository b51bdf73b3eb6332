"""Dynamic int8 rows: both variants against numpy, edges, and memory that must not be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from kt_ops_amd_blis.native import ffi, lib

from kt_ops_amd_blis import native, reference

DTYPES = {"float32": lib.KT_F32, "float16": lib.KT_F16, "bfloat16": lib.KT_BF16}
LENGTHS = (1, 15, 16, 17, 31, 33, 64, 100, 384, 576, 2048)


@pytest.fixture(params=["portable", "avx512"])
def variant(request):
    before = native.isa()
    if lib.kt_force_isa(request.param.encode()) != lib.KT_OK:
        pytest.skip(f"this CPU cannot run the {request.param} row kernels")
    yield request.param
    lib.kt_force_isa(before.encode())


def stored(values, dtype):
    """Values as they lie in memory, and as the float32 they stand for."""
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values, values
    if dtype == "float16":
        half = values.astype(np.float16)
        return half, half.astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def quantize(x, dtype, group=0, padded=None):
    rows, k = x.shape
    padded = padded or -(-k // 64) * 64
    group = group or padded
    q = np.full((rows, padded), 99, np.int8)
    scales = np.full((rows, -(-padded // group)), 99, np.float32)
    status = lib.kt_quantize_rows(
        *(ffi.cast("void *", x.ctypes.data), rows, k, padded, k, DTYPES[dtype], group),
        *(ffi.cast("int8_t *", q.ctypes.data), ffi.cast("float *", scales.ctypes.data)),
    )
    assert status == lib.KT_OK
    return q, scales


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", LENGTHS)
def test_equals_reference(variant, dtype, k):
    random = np.random.default_rng(k)
    memory, values = stored(random.standard_t(4, (7, k)), dtype)
    q, scales = quantize(memory, dtype)
    expected, expected_scales = reference.quantize(values)
    assert (q[:, :k] == expected).all()
    assert (q[:, k:] == 0).all()
    assert (scales == expected_scales).all()


@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_equal_reference(variant, group):
    random = np.random.default_rng(group)
    x = random.standard_t(4, (5, 320)).astype(np.float32)
    q, scales = quantize(x, "float32", group, 320)
    expected, expected_scales = reference.quantize(x, group)
    assert (q == expected).all()
    assert (scales == expected_scales).all()


def test_a_group_may_lie_in_the_padding(variant):
    x = np.ones((1, 33), np.float32)
    q, scales = quantize(x, "float32", 32, 128)
    assert (q[0, :33] == 127).all()
    assert (q[0, 33:] == 0).all()
    assert (scales[0] == np.float32([1 / 127, 1 / 127, 0, 0])).all()


def test_zero_and_tiny_rows_become_zero(variant):
    x = np.zeros((3, 64), np.float32)
    x[1] = 1e-36
    x[2, 3] = 1e-42
    q, scales = quantize(x, "float32")
    assert (q == 0).all()
    assert (scales == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_rows_stay_theirs(variant, bad):
    x = np.random.default_rng(0).standard_normal((4, 70)).astype(np.float32)
    clean, clean_scales = quantize(x, "float32")
    x[2, 69] = bad
    q, scales = quantize(x, "float32")
    assert np.isnan(scales[2]).all()
    assert (q[2] == 0).all()
    rest = [0, 1, 3]
    assert (q[rest] == clean[rest]).all()
    assert (scales[rest] == clean_scales[rest]).all()


def test_largest_and_smallest_magnitudes(variant):
    x = np.zeros((2, 64), np.float32)
    x[0, :2] = [3.4e38, -3.4e38]
    x[1, :2] = [1e-34, -5e-35]
    q, scales = quantize(x, "float32")
    assert q[0, :2].tolist() == [127, -127]
    assert q[1, :2].tolist() == [127, -64]
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 15, 17, 31, 33, 65])
def test_nothing_beyond_the_row_is_read(variant, dtype, k):
    """The row ends where a page without access begins."""
    size = 4 if dtype == "float32" else 2
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + page), page, 0) == 0
    try:
        start = address + page - k * size
        memory, values = stored(np.linspace(-1, 1, k)[None], dtype)
        ctypes.memmove(start, memory.ctypes.data, k * size)
        q = np.empty(128, np.int8)
        scale = np.empty(1, np.float32)
        status = lib.kt_quantize_rows(
            *(ffi.cast("void *", start), 1, k, 128, k, DTYPES[dtype], 128),
            *(ffi.cast("int8_t *", q.ctypes.data), ffi.cast("float *", scale.ctypes.data)),
        )
        assert status == lib.KT_OK
        assert (q[:k] == reference.quantize(values)[0][0]).all()
    finally:
        libc.mprotect(ctypes.c_void_p(address + page), page, 3)


def test_wrong_arguments_are_refused():
    x = np.zeros((1, 64), np.float32)
    q, scale = np.zeros(64, np.int8), np.zeros(4, np.float32)

    def call(k=64, padded=64, group=64, address=x.ctypes.data):
        return lib.kt_quantize_rows(
            *(ffi.cast("void *", address), 1, k, padded, 64, lib.KT_F32, group),
            *(ffi.cast("int8_t *", q.ctypes.data), ffi.cast("float *", scale.ctypes.data)),
        )

    assert call() == lib.KT_OK
    for arguments in (
        {"k": 0},
        {"padded": 63},
        {"padded": 32},
        {"group": 0},
        {"group": 20},
        {"address": 0},
    ):
        assert call(**arguments) == lib.KT_BAD_ARGUMENT, arguments


def test_an_unknown_variant_is_refused():
    before = native.isa()
    assert lib.kt_force_isa(b"amx") == lib.KT_BAD_ISA
    assert native.isa() == before
