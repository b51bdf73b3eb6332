"""Shared by the tests of kt-ops-cpu: they are skipped as a whole where it is not installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from kt_core.weights import LAYOUTS, PackedTensor, QuantType


def pytest_collection_modifyitems(config, items):
    """Skip if the distribution is absent; a library that is there and broken must fail instead."""
    found = importlib.util.find_spec("kt_ops_cpu")
    if found is None or found.origin is None:  # the source folder alone is an empty namespace
        for item in items:
            if "tests/ops_cpu/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="kt-ops-cpu is not installed"))


@pytest.fixture
def restore_variant():
    """Put the variant back after a test that changes it."""
    from kt_ops_cpu.library import set_variant, variant

    before = variant()
    yield
    set_variant(before)


@pytest.fixture
def restore_threads():
    """Put the pool back after a test that changes it."""
    from kt_ops_cpu.pool import ensure_pool, set_threads

    before = len(ensure_pool().node_of_thread)
    yield
    set_threads(before)


# Byte offsets of the float16 scales of a block.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
}


def make_packed(
    type: str | QuantType, rows: int, cols: int, seed: int = 0, size: float = 0.02
) -> PackedTensor:
    """Return ``(rows, cols)`` of ``type``: every bit random, scales of both signs up to ``size``."""
    quant = QuantType(type)
    layout = LAYOUTS[quant]
    rng = np.random.default_rng([seed, rows, cols, *quant.encode()])
    if layout.block_size == 1:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if quant is QuantType.F16:
            data = values.astype(np.float16).view(np.uint8)
        elif quant is QuantType.BF16:
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.view(np.uint8)
        return PackedTensor("w", (rows, cols), quant, data.reshape(rows, -1))
    blocks = (rows, cols // layout.block_size)
    data = rng.integers(0, 256, (*blocks, layout.block_bytes), dtype=np.uint8)

    def scales() -> np.ndarray:
        signs = rng.choice(np.array([-1, 1], dtype=np.float16), blocks)
        return rng.uniform(size / 10, size, blocks).astype(np.float16) * signs

    for offset in SCALES.get(quant.value, ()):
        data[..., offset : offset + 2] = scales().view(np.uint8).reshape(*blocks, 2)
    if quant is QuantType.MXFP4:
        data[..., 0] = rng.integers(112, 124, blocks)
    if quant is QuantType.IQ1_M:  # the scale's four nibbles end four 16-bit words
        words = data[..., 48:56].copy().view(np.uint16)
        bits = scales().view(np.uint16)
        for i in range(4):
            words[..., i] = (words[..., i] & 0x0FFF) | ((bits >> (4 * i) & 15) << 12)
        data[..., 48:56] = words.view(np.uint8)
    return PackedTensor("w", (rows, cols), quant, data.reshape(rows, -1))


@pytest.fixture(scope="session")
def random_packed():
    """:func:`make_packed`, for tests in other files."""
    return make_packed
