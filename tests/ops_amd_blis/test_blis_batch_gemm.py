"""The batch-GEMM interface: exact results, and every wrong argument refused before BLIS sees it."""

from __future__ import annotations

import numpy as np
import pytest

from kt_core.errors import KernelError
from kt_ops_amd_blis import batch_gemm

pytestmark = pytest.mark.usefixtures("blis")

FUNCTIONS = {
    "prefill": batch_gemm.prefill_cblas_gemm_s8s8s32,
    "decode": batch_gemm.decode_cblas_gemm_s8s8s32,
}
M, N, K = 6, 96, 70


@pytest.fixture
def matrices():
    random = np.random.default_rng(0)
    a = random.integers(-128, 128, (M, K), dtype=np.int8)
    b = random.integers(-128, 128, (K, N), dtype=np.int8)
    return a, b, a.astype(np.int64) @ b


@pytest.mark.parametrize("phase", FUNCTIONS)
@pytest.mark.parametrize("threads", [None, 1, 2])
def test_reordered_and_plain(matrices, phase, threads):
    a, b, expected = matrices
    columns_first = np.ascontiguousarray(b.T)
    kinds = (
        b,
        batch_gemm.reorder_B_gemm("r", "n", K, N, N, b),
        batch_gemm.reorder_B_gemm("r", "t", K, N, K, columns_first),
        batch_gemm.reorder_B_gemm("c", "n", K, N, K, columns_first),
    )
    for kind in kinds:
        c = np.full((M, N), 99, np.int32)
        FUNCTIONS[phase](
            *("r", "n", "n", "f", M, N, K, 1.0, a, K, 0, kind, N, 0, 0.0, c, N, 0), threads=threads
        )
        assert (c == expected).all()


def test_cblas_numbers_are_understood(matrices):
    a, b, expected = matrices
    c = np.zeros((M, N), np.int32)
    FUNCTIONS["prefill"](101, 111, 111, "f", M, N, K, 1, a, K, 0, b, N, 0, 0, c, N, 0)
    assert (c == expected).all()


def test_beta_adds_to_what_is_there(matrices):
    a, b, expected = matrices
    c = np.ones((M, N), np.int32)
    FUNCTIONS["decode"]("r", "n", "n", "f", M, N, K, 3, a, K, 0, b, N, 0, -2, c, N, 0)
    assert (c == 3 * expected - 2).all()


def test_size_of_reordered_b():
    assert batch_gemm.get_reorder_B_size("r", "n", K, N) >= K * N
    with pytest.raises(KernelError, match="must be positive"):
        batch_gemm.get_reorder_B_size("r", "n", 0, N)


@pytest.mark.parametrize(
    "function",
    [batch_gemm.prefill_int4_cblas_gemm_s8s8s32, batch_gemm.decode_int4_cblas_gemm_s8s8s32],
)
def test_int4_is_refused(function):
    with pytest.raises(KernelError, match="int8 only") as caught:
        function("r", "n", "n")
    assert caught.value.code == "KT537"


NAMES = (
    *("layout", "transa", "transb", "offsetc", "m", "n", "k", "alpha", "a", "lda", "oa"),
    *("b", "ldb", "ob", "beta", "c", "ldc", "oc"),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": "x"}, "neither 'r' nor 'c'"),
        ({"transa": "q"}, "neither 'n' nor 't'"),
        ({"transb": None}, "neither 'n' nor 't'"),
        ({"m": 0}, "must be positive"),
        ({"k": -1}, "must be positive"),
        ({"m": 2**40}, "fewer than"),
        ({"lda": K - 1}, "leading dimension of a"),
        ({"ldb": 5}, "leading dimension of b"),
        ({"ldc": N - 1}, "leading dimension of c"),
        ({"lda": K + 1}, "fewer than"),
        ({"ldc": 2**62}, "fewer than"),
        ({"transa": "t"}, "fewer than|leading dimension"),
        ({"oa": 1}, "offsets"),
        ({"oc": 1}, "offsets"),
        ({"alpha": 0.5}, "whole numbers"),
        ({"a": np.zeros((M, K), np.uint8)}, "contiguous int8"),
        ({"a": np.zeros((M, 2 * K), np.int8)[:, ::2]}, "contiguous int8"),
        ({"c": np.zeros((M, N), np.int64)}, "contiguous int32"),
    ],
)
def test_wrong_arguments(matrices, changes, words):
    a, b, _ = matrices
    c = np.full((M, N), 7, np.int32)
    values = ("r", "n", "n", "f", M, N, K, 1, a, K, 0, b, N, 0, 0, c, N, 0)
    arguments = dict(zip(NAMES, values, strict=True)) | changes
    with pytest.raises(KernelError, match=words) as caught:
        FUNCTIONS["prefill"](**arguments)
    assert caught.value.code == "KT546"
    assert (c == 7).all()


def test_read_only_result(matrices):
    a, b, _ = matrices
    c = np.zeros((M, N), np.int32)
    c.flags.writeable = False
    with pytest.raises(KernelError, match="read-only"):
        FUNCTIONS["prefill"]("r", "n", "n", "f", M, N, K, 1, a, K, 0, b, N, 0, 0, c, N, 0)


def test_reordered_b_goes_with_what_it_was_made_for(matrices):
    a, b, _ = matrices
    c = np.zeros((M, N), np.int32)
    reordered = batch_gemm.reorder_B_gemm("r", "n", K, N, N, b)
    with pytest.raises(KernelError, match="was reordered as"):
        FUNCTIONS["prefill"](
            *("r", "n", "n", "f", M, N - 1, K, 1, a, K, 0, reordered, N, 0, 0, c, N, 0)
        )
    with pytest.raises(KernelError, match="row-major"):
        FUNCTIONS["prefill"](
            *("r", "n", "t", "f", M, N, K, 1, a, K, 0, reordered, N, 0, 0, c, N, 0)
        )


def test_the_callers_own_thread_setting_is_kept(matrices, blis):
    """BLIS is told how many threads to use for one call, and has its old number afterwards."""
    a, b, _ = matrices
    c = np.zeros((M, N), np.int32)
    if not hasattr(blis.handle, "bli_thread_set_num_threads"):
        pytest.skip("this library has no setting of its own")
    blis.handle.bli_thread_set_num_threads(3)
    FUNCTIONS["prefill"](*("r", "n", "n", "f", M, N, K, 1, a, K, 0, b, N, 0, 0, c, N, 0), threads=1)
    assert blis.handle.bli_thread_get_num_threads() == 3
