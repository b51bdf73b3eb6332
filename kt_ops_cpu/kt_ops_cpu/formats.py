"""The stored types the kernels compute on. Data only: no torch, no native library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kt_core.weights import LAYOUTS, QuantType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NAMES = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
)

FORMATS: dict[QuantType, int] = {
    QuantType(name): number
    for name in _NAMES
    if (number := LAYOUTS[QuantType(name)].ggml) is not None
}
"""Served types and GGML's number for each."""

CODEBOOKS = frozenset(quant for quant in FORMATS if quant.startswith(("IQ1", "IQ2", "IQ3")))
"""Types whose values are indices into a codebook."""


def codebook(type: QuantType) -> npt.NDArray[np.int8]:
    """Return the codebook behind ``type``, flat, in index order. It is ``gguf``'s own table."""
    import numpy as np
    from gguf import quants

    owner = getattr(quants, "IQ1_S" if type is QuantType.IQ1_M else type.value)
    owner.init_grid()
    return np.ascontiguousarray(owner.grid.reshape(-1).astype(np.int8))
