"""Weights as BLIS reads them: int8 panels with their scales, made from any stored type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.errors import KernelError
from kt_core.operators.kernel import ExpertsShape
from kt_core.weights import PackedTensor, QuantType
from kt_ops_amd_blis import native
from kt_ops_amd_blis.library import Library
from kt_ops_amd_blis.native import ffi, lib

PANEL = 64
"""Columns of a BLIS micro-panel. Both sizes of a matrix are padded to multiples of it."""

GROUP_SIZES = (32, 64, 128, 256)
"""Inputs that may share a scale; 0 stands for one scale per output channel."""

_WIDTHS = (512, 256, 128, 64)
_DTYPES = {QuantType.F32: lib.KT_F32, QuantType.F16: lib.KT_F16, QuantType.BF16: lib.KT_BF16}
_FLOAT32 = QuantType.F32


def padded(size: int) -> int:
    """Return ``size`` rounded up to whole panels."""
    return (size + PANEL - 1) // PANEL * PANEL


def chunk_width(columns: int, tasks: int, smallest: int = PANEL) -> int:
    """Return how many columns one product covers: the widest that still makes ``tasks`` chunks.

    Wide products are the faster ones, but every thread needs work in the smallest call that
    matters.
    """
    for width in _WIDTHS:
        if width >= smallest and columns // width >= tasks:
            return width
    return smallest


@dataclass(frozen=True)
class Matrices:
    """``count`` matrices of one shape: ``layout`` is their ``kt_layout``, the arrays are flat."""

    count: int
    layout: Any
    panels: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """Bytes of panels and scales."""
        return int(self.panels.nbytes + self.scales.nbytes)


def allocate(
    library: Library, count: int, columns: int, depth: int, width: int, group: int, name: str
) -> Matrices:
    """Return room for ``count`` matrices of ``columns`` outputs and ``depth`` inputs."""
    layout = ffi.new("kt_layout *")
    status = lib.kt_layout_init(library.table, columns, depth, width, group, layout)
    native.check(status, name, (f"outputs {columns}, inputs {depth}, group size {group}",))
    return Matrices(
        count,
        layout,
        native.empty(count * layout.panel_bytes, np.int8, name),
        native.empty(count * layout.scale_count, np.float32, name),
    )


def allocate_experts(
    library: Library, shape: ExpertsShape, widths: tuple[int, int], group: int, name: str
) -> tuple[Matrices, Matrices]:
    """Return room for a layer: gate and up in one matrix per expert, and down."""
    inter, hidden = padded(shape.intermediate_size), padded(shape.hidden_size)
    count = shape.num_experts
    return (
        allocate(library, count, 2 * inter, shape.hidden_size, widths[0], group, name),
        allocate(library, count, hidden, shape.intermediate_size, widths[1], group, name),
    )


def fill(
    library: Library,
    matrices: Matrices,
    sources: Sequence[tuple[PackedTensor, ...]],
    first: int,
    name: str,
) -> None:
    """Quantise and reorder ``sources`` into the matrices ``first``, ``first + 1``, ….

    A source is one tensor ``(out, in)``, or two of the same shape (gate and up) that share a
    matrix. Plain float types are read where they lie, all of them in one parallel run; anything
    else is dequantised matrix by matrix, so that at most one is held as float32.

    Raises:
        KernelError: KT541 if values are not finite.
        WeightsError: KT420 if a stored type cannot be dequantised.
    """
    plain = sources[0][0].type in _DTYPES and all(
        tensor.type is sources[0][0].type for source in sources for tensor in source
    )
    if plain:
        arrays = [tuple(tensor.data for tensor in source) for source in sources]
        _pack(library, matrices, arrays, sources[0][0], first, name)
        return
    for index, source in enumerate(sources):
        floats = tuple(tensor.dequantize() for tensor in source)
        like = PackedTensor(source[0].name, source[0].shape, _FLOAT32, floats[0].view(np.uint8))
        _pack(library, matrices, [floats], like, first + index, name)


def _pack(
    library: Library,
    matrices: Matrices,
    arrays: Sequence[tuple[npt.NDArray[Any], ...]],
    like: PackedTensor,
    first: int,
    name: str,
) -> None:
    """Run ``kt_pack``; ``like`` gives the shape and type that all ``arrays`` have."""
    layout = matrices.layout
    panels = ffi.cast("int8_t *", matrices.panels.ctypes.data)
    scales = ffi.cast("float *", matrices.scales.ctypes.data)
    jobs = ffi.new("kt_pack_job[]", len(arrays))
    for index, source in enumerate(arrays):
        job = jobs[index]
        job.panels = panels + (first + index) * layout.panel_bytes
        job.scales = scales + (first + index) * layout.scale_count
        job.a = ffi.cast("void *", source[0].ctypes.data)
        job.b = ffi.cast("void *", source[1].ctypes.data) if len(source) == 2 else ffi.NULL
        job.rows = like.shape[0]
        job.count = layout.chunks
    rows, depth = like.shape
    status = lib.kt_pack(
        *(library.table, native.pool(), layout, rows, depth),
        *(_DTYPES[like.type], like.row_bytes, jobs, len(arrays)),
    )
    native.check(status, name)


def require_shape(
    tensors: Sequence[PackedTensor], count: int, shape: tuple[int, int], what: str, name: str
) -> None:
    """Check that there are ``count`` tensors of ``shape``.

    Raises:
        KernelError: KT540 naming the first that differs.
    """
    if len(tensors) != count:
        raise KernelError.of(
            "KT540", f"{name} was given {len(tensors)} {what} matrices for {count} experts"
        )
    for tensor in tensors:
        if tuple(tensor.shape) != shape:
            raise KernelError.of(
                "KT540",
                f"{name}: {tensor.name} has shape {list(tensor.shape)}, not {list(shape)}",
            )
