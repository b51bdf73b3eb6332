"""``kt_ops_amd_blis.linear_int8``: a linear layer in int8 by AMD BLIS LPGEMM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import Accuracy, KernelContext, LinearKernel, LinearShape
from kt_core.weights import PackedTensor, TensorInfo
from kt_ops_amd_blis import native, sizes, tensors
from kt_ops_amd_blis.library import Library, library
from kt_ops_amd_blis.native import ffi, lib
from kt_ops_amd_blis.packed import allocate, chunk_width, fill, padded, require_shape


class LinearInt8(LinearKernel):
    """Symmetric int8 weights per output channel (or ``group_size`` inputs), int8 rows of activations."""

    def __init__(self, shape: LinearShape, context: KernelContext) -> None:
        super().__init__(shape, context)
        self._library: Library = library()
        self._group = int(context.options.get("group_size", 0))
        self._layer: Any = None
        self._keep: tuple[object, ...] = ()

    @classmethod
    def check(
        cls, shape: LinearShape, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Return what of this layer cannot be served; needs no library."""
        return sizes.linear_reasons(shape, weights, context.options)

    @classmethod
    def resident_bytes(
        cls, shape: LinearShape, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Return the bytes of panels and scales."""
        return sizes.linear_bytes(shape, context.options)

    @classmethod
    def accuracy(
        cls, shape: LinearShape, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy:
        """One scale per row of activations: the more one value stands out, the more others lose."""
        return Accuracy(0.08, "weights and activations in 8 bits")

    def load(self, weight: PackedTensor, bias: torch.Tensor | None) -> None:
        """Quantise and reorder ``weight``.

        Raises:
            KernelError: KT540 for wrong shapes, KT541 for non-finite weights, KT544 without memory.
        """
        name, shape = self.context.name, self.shape
        require_shape([weight], 1, (shape.out_features, shape.in_features), "weight", name)
        columns = padded(shape.out_features)
        matrices = allocate(
            *(self._library, 1, columns, shape.in_features),
            *(chunk_width(columns, native.threads()), self._group, name),
        )
        fill(self._library, matrices, [(weight,)], 0, name)
        layer = ffi.new("kt_linear *")
        layer.layout = matrices.layout[0]
        layer.panels = ffi.cast("int8_t *", matrices.panels.ctypes.data)
        layer.scales = ffi.cast("float *", matrices.scales.ctypes.data)
        layer.out_features, layer.in_features = shape.out_features, shape.in_features
        added = None
        if bias is not None:
            if tuple(bias.shape) != (shape.out_features,):
                raise KernelError.of("KT540", f"{name}: the bias has shape {list(bias.shape)}")
            added = np.zeros(columns, np.float32)
            added[: shape.out_features] = bias.detach().to(torch.float32).numpy()
            layer.bias = ffi.cast("float *", added.ctypes.data)
        self._layer = layer
        self._keep = (matrices, added)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`LinearKernel.forward`. A row with NaN or infinity becomes a row of NaN."""
        name, shape = self.context.name, self.shape
        if self._layer is None:
            raise KernelError.of("KT540", f"{name} was called before its weights were loaded")
        if x.dim() == 0 or x.shape[-1] != shape.in_features:
            raise KernelError.of(
                "KT540",
                f"{name} was given activations of shape {list(x.shape)}, not "
                f"[…, {shape.in_features}]",
            )
        rows = tensors.rows_of(x.reshape(-1, shape.in_features), shape.in_features, name)
        out = torch.empty((rows.shape[0], shape.out_features), dtype=x.dtype)
        if rows.shape[0]:
            status = lib.kt_linear_forward(
                *(self._library.table, native.pool(), self._layer),
                *(tensors.address(rows), rows.shape[0]),
                *(tensors.stride_of(rows, shape.in_features), tensors.DTYPES[rows.dtype]),
                *(tensors.address(out), shape.out_features),
            )
            native.check(status, name)
        return out.reshape(*x.shape[:-1], shape.out_features)
