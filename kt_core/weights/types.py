"""Stored tensor types: GGML's numbering, block sizes, and the plain dtypes of safetensors.

Facts come from :data:`gguf.GGML_QUANT_SIZES`; this module copies the constants so that a header can
be read without importing ``gguf`` (0.1 s) and numpy. A test holds the copy against the original.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class QuantType(enum.StrEnum):
    """How the values of a tensor are stored. The names are GGML's; F64/I* hold plain values."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F64 = "F64"
    I8 = "I8"
    I16 = "I16"
    I32 = "I32"
    I64 = "I64"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q8_1 = "Q8_1"
    Q2_K = "Q2_K"
    Q3_K = "Q3_K"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    Q8_K = "Q8_K"
    IQ1_S = "IQ1_S"
    IQ1_M = "IQ1_M"
    IQ2_XXS = "IQ2_XXS"
    IQ2_XS = "IQ2_XS"
    IQ2_S = "IQ2_S"
    IQ3_XXS = "IQ3_XXS"
    IQ3_S = "IQ3_S"
    IQ4_NL = "IQ4_NL"
    IQ4_XS = "IQ4_XS"
    TQ1_0 = "TQ1_0"
    TQ2_0 = "TQ2_0"
    MXFP4 = "MXFP4"
    NVFP4 = "NVFP4"
    Q1_0 = "Q1_0"
    F8_E4M3 = "F8_E4M3"
    F8_E5M2 = "F8_E5M2"
    F8_E8M0 = "F8_E8M0"
    U8 = "U8"
    U16 = "U16"
    U32 = "U32"
    U64 = "U64"
    BOOL = "BOOL"


@dataclass(frozen=True)
class Layout:
    """``block_size`` values lie in ``block_bytes`` bytes; ``ggml`` is GGML's number, if any."""

    block_size: int
    block_bytes: int
    ggml: int | None


LAYOUTS: dict[QuantType, Layout] = {
    QuantType(name): Layout(block_size, block_bytes, number)
    for name, number, block_size, block_bytes in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q8_1", 9, 32, 40),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("Q8_K", 15, 256, 292),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50),
        ("IQ4_NL", 20, 32, 18),
        ("IQ3_S", 21, 256, 110),
        ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136),
        ("I8", 24, 1, 1),
        ("I16", 25, 1, 2),
        ("I32", 26, 1, 4),
        ("I64", 27, 1, 8),
        ("F64", 28, 1, 8),
        ("IQ1_M", 29, 256, 56),
        ("BF16", 30, 1, 2),
        ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
        ("MXFP4", 39, 32, 17),
        ("NVFP4", 40, 64, 36),
        ("Q1_0", 41, 128, 18),
        ("F8_E4M3", None, 1, 1),
        ("F8_E5M2", None, 1, 1),
        ("F8_E8M0", None, 1, 1),
        ("U8", None, 1, 1),
        ("U16", None, 1, 2),
        ("U32", None, 1, 4),
        ("U64", None, 1, 8),
        ("BOOL", None, 1, 1),
    )
}
"""Block layout of every stored type."""

MAX_VALUES = 1 << 56
"""More values than any file holds. The bound also keeps products of dimensions, where one is zero,
within what numpy and torch can express."""

BY_GGML_NUMBER: dict[int, QuantType] = {
    layout.ggml: quant for quant, layout in LAYOUTS.items() if layout.ggml is not None
}
"""The type behind a number in a GGUF header."""

PLAIN = frozenset(quant for quant, layout in LAYOUTS.items() if layout.block_size == 1)
"""Types that hold one value per block, so that no unpacking is needed."""

DEQUANTIZABLE = frozenset(QuantType) - {QuantType.Q8_1, QuantType.Q8_K, QuantType.Q1_0}
"""Types whose values kt can compute; of the others ``gguf`` knows the size, not the formula."""
