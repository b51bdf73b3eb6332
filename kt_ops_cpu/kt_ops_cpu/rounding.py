"""What rounding activations costs, as the kernels promise it."""

from __future__ import annotations

from collections.abc import Sequence

from kt_core.operators.kernel import Accuracy
from kt_core.weights import QuantType, TensorInfo

# 1/254 of the largest of 32 to 256 values, which is about three times their root mean square: 0.7 %
# if all is ordinary, and more where one value stands out.
_EIGHT_BITS = 0.02
_SIXTEEN_BITS = 3e-4
_BFLOAT16 = 0.005
_EXACT = frozenset({QuantType.F32, QuantType.F16})


def rounding(
    weights: Sequence[TensorInfo], *, split: bool = False, layers: int = 1
) -> Accuracy | None:
    """Return the promise for these stored types; ``split``: activations keep 16 bits."""
    kinds = {info.type for info in weights if len(info.shape) > 1} - _EXACT
    if not kinds:
        return None
    if kinds == {QuantType.BF16} and not split:
        return Accuracy(_BFLOAT16, "activations rounded to bfloat16")
    if split:
        return Accuracy(layers * _SIXTEEN_BITS, "activations rounded to 16 bits")
    return Accuracy(layers * _EIGHT_BITS, "activations rounded to 8 bits")
