"""A tensor as it lies in a file: shape, type and a view of its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kt_core.weights.types import LAYOUTS, QuantType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


@dataclass(frozen=True)
class TensorInfo:
    """What a header says about one tensor.

    ``shape`` is in row-major (torch) order: a linear weight is ``(out_features, in_features)`` and
    stacked experts are ``(experts, out, in)``. The last dimension is the one stored in blocks.
    ``offset`` counts bytes from the start of ``file``.
    """

    name: str
    shape: tuple[int, ...]
    type: QuantType
    offset: int
    nbytes: int
    file: str = ""

    @property
    def numel(self) -> int:
        """Number of values."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the stored bytes: the last dimension counts bytes instead of values."""
        return packed_shape(self.shape, self.type)


def packed_shape(shape: tuple[int, ...], type: QuantType) -> tuple[int, ...]:
    """Return the shape of the uint8 array that stores ``shape`` values of ``type``."""
    layout = LAYOUTS[type]
    if not shape:
        return (layout.block_bytes,)
    return (*shape[:-1], shape[-1] // layout.block_size * layout.block_bytes)


class PackedTensor:
    """A zero-copy view of one stored tensor. Keeps its mapping alive.

    ``data`` is a C-contiguous uint8 array of shape ``(*shape[:-1], row_bytes)``, read-only when it
    views a file. ``shape`` counts values, ``data`` counts bytes.
    """

    __slots__ = ("data", "name", "shape", "type")

    def __init__(
        self, name: str, shape: tuple[int, ...], type: QuantType, data: npt.NDArray[np.uint8]
    ) -> None:
        self.name = name
        self.shape = shape
        self.type = type
        self.data = data

    def __repr__(self) -> str:
        return f"PackedTensor({self.name!r}, {list(self.shape)}, {self.type})"

    @property
    def nbytes(self) -> int:
        """Bytes it occupies as stored."""
        return int(self.data.nbytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (the last dimension)."""
        return packed_shape(self.shape, self.type)[-1]

    def rows(self, index: slice | npt.NDArray[np.int64]) -> PackedTensor:
        """Select along the first dimension; a slice is a view, an index array copies packed rows.

        A vector is selected value by value, so its type must hold one value per block.
        """
        if len(self.shape) == 1:
            each = LAYOUTS[self.type].block_bytes
            data = self.data.reshape(self.shape[0], -1)[index]
            if data.shape[-1] != each:
                raise ValueError(f"{self.name} holds blocks of {self.type}, not single values")
            return PackedTensor(self.name, (data.shape[0],), self.type, data.reshape(-1))
        data = self.data[index]
        return PackedTensor(self.name, (data.shape[0], *self.shape[1:]), self.type, data)

    def unstack(self) -> list[PackedTensor]:
        """Split ``(n, …)`` into ``n`` views, as for stacked experts."""
        return [
            PackedTensor(f"{self.name}[{i}]", self.shape[1:], self.type, self.data[i])
            for i in range(self.shape[0])
        ]

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the values as float32 ``(*shape)``; ``WeightsError`` KT420 if unsupported."""
        from kt_core.weights.dequantize import dequantize

        return dequantize(self)

    def to_torch(
        self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Return a torch tensor of ``dtype`` (default: as stored if plain, else float32).

        The result never aliases the file.
        """
        from kt_core.weights.dequantize import to_torch

        return to_torch(self, dtype, device)
