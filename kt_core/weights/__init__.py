"""Weight files: validated headers, mapped bytes, packed tensors."""

from kt_core.weights.source import WeightSource
from kt_core.weights.tensor import PackedTensor, TensorInfo
from kt_core.weights.types import LAYOUTS, PLAIN, Layout, QuantType

__all__ = ["LAYOUTS", "PLAIN", "Layout", "PackedTensor", "QuantType", "TensorInfo", "WeightSource"]
