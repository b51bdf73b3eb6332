"""``kt_ops_amd_blis.moe_int8``: the experts of a layer, int8 by AMD BLIS LPGEMM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import (
    Accuracy,
    Activation,
    ExpertsKernel,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
)
from kt_core.weights import TensorInfo
from kt_ops_amd_blis import native, sizes, tensors
from kt_ops_amd_blis.cache import ExpertsCache
from kt_ops_amd_blis.library import Library, library
from kt_ops_amd_blis.native import ffi, lib
from kt_ops_amd_blis.packed import (
    Matrices,
    allocate_experts,
    chunk_width,
    fill,
    padded,
    require_shape,
)

ACTIVATIONS = {
    "silu": lib.KT_SILU,
    "gelu": lib.KT_GELU,
    "gelu_tanh": lib.KT_GELU_TANH,
    "swiglu_oai": lib.KT_SWIGLU_OAI,
    "relu": lib.KT_RELU,
}
"""The gate activations that are fused into the layer."""

Floats = npt.NDArray[np.float32]


class MoeInt8(ExpertsKernel):
    """Symmetric int8 weights per output channel (or group), int8 activations per token.

    ``gate`` and ``up`` are one matrix with alternating column chunks, so that the activation is
    applied while a product is still in the cache; the activated rows are quantised again for
    ``down``. Bounds of the error are in the README. Options: ``group_size`` (0, the default, is per
    channel) and ``cache_dir`` (where reordered weights are kept between runs).
    """

    def __init__(self, shape: ExpertsShape, activation: Activation, context: KernelContext) -> None:
        super().__init__(shape, activation, context)
        if activation.kind not in ACTIVATIONS:
            raise KernelError.of(
                "KT538",
                f'{context.name}: the activation "{activation.kind}" is not computed by MOE_INT8',
                facts=[f"supported: {', '.join(ACTIVATIONS)}"],
                help="name another experts kernel, such as kt_core.torch_experts",
            )
        self._library: Library = library()
        self._group = int(context.options.get("group_size", 0))
        self._layer: Any = None
        self._keep: tuple[object, ...] = ()

    @classmethod
    def check(
        cls, shape: ExpertsShape, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Return what of this layer cannot be served; needs no library."""
        return sizes.experts_reasons(shape, weights, context.options)

    @classmethod
    def resident_bytes(
        cls, shape: ExpertsShape, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Return the bytes of panels and scales; the stored weights are not needed after loading."""
        return sizes.experts_bytes(shape, context.options)

    @classmethod
    def accuracy(
        cls, shape: ExpertsShape, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy:
        """One scale per row of activations: the more one value stands out, the more others lose."""
        return Accuracy(0.12, "weights and activations in 8 bits, twice")

    def load(self, weights: ExpertsWeights) -> None:
        """Quantise and reorder every expert, or read them from ``cache_dir`` if they are there.

        Raises:
            KernelError: KT540 for wrong shapes, KT541 for non-finite weights, KT542 or KT543 for a
                cache file that does not belong here, KT544 without enough memory.
        """
        name, shape = self.context.name, self.shape
        across, back = (
            (shape.intermediate_size, shape.hidden_size),
            (shape.hidden_size, shape.intermediate_size),
        )
        require_shape(weights.gate, shape.num_experts, across, "gate", name)
        require_shape(weights.up, shape.num_experts, across, "up", name)
        require_shape(weights.down, shape.num_experts, back, "down", name)
        cache = None
        if self.context.options.get("cache_dir"):
            folder = Path(str(self.context.options["cache_dir"]))
            cache = ExpertsCache(folder, name, shape, self._group, self._library, weights)
        cached = cache.read() if cache is not None else None
        gate_up, down = self._pack(weights) if cached is None else cached
        if cache is not None and cached is None:
            cache.write(gate_up, down)
        self._build(gate_up, down, weights)

    def _pack(self, weights: ExpertsWeights) -> tuple[Matrices, Matrices]:
        shape, threads = self.shape, native.threads()
        active = max(1, min(shape.top_k, shape.num_experts))
        inter, hidden = padded(shape.intermediate_size), padded(shape.hidden_size)
        gate_up, down = allocate_experts(
            self._library,
            shape,
            # In decoding, `active` experts times these chunks are the tasks; then one task per
            # chunk.
            (chunk_width(2 * inter, -(-2 * threads // active), 128), chunk_width(hidden, threads)),
            self._group,
            self.context.name,
        )
        pairs = [(gate, up) for gate, up in zip(weights.gate, weights.up, strict=True)]
        fill(self._library, gate_up, pairs, 0, self.context.name)
        fill(self._library, down, [(tensor,) for tensor in weights.down], 0, self.context.name)
        return gate_up, down

    def _build(self, gate_up: Matrices, down: Matrices, weights: ExpertsWeights) -> None:
        inter, hidden = self.shape.intermediate_size, self.shape.hidden_size
        gate_bias = self._bias(weights.gate_bias, inter)
        up_bias = self._bias(weights.up_bias, inter)
        down_bias = self._bias(weights.down_bias, hidden)
        layer = ffi.new("kt_experts *")
        layer.experts, layer.hidden, layer.inter = self.shape.num_experts, hidden, inter
        layer.gate_up, layer.down = gate_up.layout[0], down.layout[0]
        layer.gate_up_panels = ffi.cast("int8_t *", gate_up.panels.ctypes.data)
        layer.gate_up_scales = ffi.cast("float *", gate_up.scales.ctypes.data)
        layer.down_panels = ffi.cast("int8_t *", down.panels.ctypes.data)
        layer.down_scales = ffi.cast("float *", down.scales.ctypes.data)
        for field, bias in (
            ("gate_bias", gate_bias),
            ("up_bias", up_bias),
            ("down_bias", down_bias),
        ):
            if bias is not None:
                setattr(layer, field, ffi.cast("float *", bias.ctypes.data))
        layer.activation = ACTIVATIONS[self.activation.kind]
        layer.alpha, layer.limit = self.activation.alpha, self.activation.limit
        self._layer = layer
        self._keep = (gate_up, down, gate_bias, up_bias, down_bias)

    def _bias(self, bias: torch.Tensor | None, width: int) -> Floats | None:
        """Return a bias padded to whole panels, as native code adds it panel by panel."""
        if bias is None:
            return None
        if tuple(bias.shape) != (self.shape.num_experts, width):
            raise KernelError.of(
                "KT540", f"{self.context.name}: a bias has shape {list(bias.shape)}"
            )
        array = np.zeros((self.shape.num_experts, padded(width)), np.float32)
        array[:, :width] = bias.detach().to(torch.float32).numpy()
        return array

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """See :meth:`ExpertsKernel.forward`. A row with NaN or infinity becomes a row of NaN."""
        name, width = self.context.name, self.shape.hidden_size
        if self._layer is None:
            raise KernelError.of("KT540", f"{name} was called before its weights were loaded")
        x = tensors.rows_of(hidden_states, width, name)
        index, weights = tensors.routing(top_k_index, top_k_weights, x.shape[0], name)
        out = torch.empty((x.shape[0], width), dtype=x.dtype)
        if x.shape[0] == 0:
            return out
        call = ffi.new("kt_experts_call *")
        call.x, call.tokens = tensors.address(x), x.shape[0]
        call.x_stride, call.x_dtype = tensors.stride_of(x, width), tensors.DTYPES[x.dtype]
        call.ids = tensors.address(index, "int64_t *")
        call.weights = tensors.address(weights, "float *")
        call.top_k = index.shape[1]
        call.out, call.out_stride = tensors.address(out), width
        status = lib.kt_experts_forward(self._library.table, native.pool(), self._layer, call)
        facts: tuple[str, ...] = ()
        if status == lib.KT_BAD_EXPERT:
            token, slot = divmod(call.bad_index, call.top_k)
            wrong = int(index[token, slot])
            facts = (
                f"token {token}, slot {slot}: {wrong}; experts 0…{self.shape.num_experts - 1}",
            )
        native.check(status, name, facts)
        return out
