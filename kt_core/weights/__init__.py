"""Weight files: validated headers, mapped bytes, packed tensors.

Importing this package loads neither torch nor numpy; numpy comes with the first tensor.
"""

from kt_core.weights.opening import open_weights
from kt_core.weights.source import WeightSource
from kt_core.weights.tensor import PackedTensor, TensorInfo
from kt_core.weights.types import DEQUANTIZABLE, LAYOUTS, PLAIN, Layout, QuantType

__all__ = [
    "DEQUANTIZABLE",
    "LAYOUTS",
    "PLAIN",
    "Layout",
    "PackedTensor",
    "QuantType",
    "TensorInfo",
    "WeightSource",
    "open_weights",
]
