"""The operators around the products of a decode step: norms, attention, routers and layers on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from kt_core.models.hf_cache import AppendingLayer
from kt_core.operators import fused
from kt_core.operators.operator import OperatorContext
from kt_ops_cpu.library import check, native
from kt_ops_cpu.matrices import DTYPES
from kt_ops_cpu.pool import ensure_pool

_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}

_WEIGHT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
"""``enum kt_cpu_type`` of a plain tensor."""

_FEW_ROWS = 16
"""Norms of more rows are worth torch's threads; one row is not worth waking any."""


class _CpuStep:
    """See :class:`kt_core.operators.fused.StepKernels`."""

    head_dims: Sequence[int] = range(8, 1025, 8)
    most_experts = 65536
    most_chosen = 65536

    def serves(self, x: torch.Tensor) -> bool:
        return (
            x.device.type == "cpu"
            and x.dtype in _NUMBERS
            and 0 < x.numel() <= _FEW_ROWS * x.shape[-1]
        )

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
    ) -> torch.Tensor:
        return self._norm(x, None, weight, eps, offset)[1]

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._norm(x, residual, weight, eps, offset)

    def _norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cols = x.shape[-1]
        x = x.contiguous()
        y = torch.empty_like(x)
        total = y
        call = native().ffi.new("struct kt_cpu_norm *")
        _fill(call.x, x, cols)
        _fill(call.y, y, cols)
        if residual is not None:
            residual, total = residual.contiguous(), torch.empty_like(x)
            _fill(call.residual, residual, cols)
            _fill(call.sum, total, cols)
        call.weight = _pointer(weight)
        call.rows, call.cols, call.eps, call.offset = x.numel() // cols, cols, eps, offset
        _run("kt_cpu_norm", call)
        return total, y

    def cache_layer(self, layer: Any) -> bool:
        return (
            type(layer) is AppendingLayer
            and layer.is_initialized
            and layer.keys.dim() == 4
            and layer.keys.shape[0] == 1
            and layer.get_seq_length() > 0
        )

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        weights: tuple[torch.Tensor | None, torch.Tensor | None],
        layer: Any,
        *,
        window: int,
        eps: float,
        scale: float,
    ) -> torch.Tensor:
        position = layer.get_seq_length()
        keys, values = layer.extend(1)
        head_dim = keys.shape[-1]
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        cosine, sine = (angle.to(q.dtype).contiguous() for angle in angles)
        y = torch.empty_like(q)
        call = native().ffi.new("struct kt_cpu_attend *")
        call.q, call.k, call.v, call.y = _pointer(q), _pointer(k), _pointer(v), _pointer(y)
        call.cosine, call.sine = _pointer(cosine), _pointer(sine)
        if weights[0] is not None:
            call.q_weight = _pointer(weights[0])
        if weights[1] is not None:
            call.k_weight = _pointer(weights[1])
        call.keys, call.values = _pointer(keys), _pointer(values)
        call.head_bytes = keys.stride(1) * keys.element_size()
        call.token_bytes = keys.stride(2) * keys.element_size()
        call.position, call.window = position, window
        call.q_heads, call.kv_heads = q.numel() // head_dim, keys.shape[1]
        call.head_dim, call.rotary = head_dim, cosine.shape[-1]
        call.dtype, call.eps, call.scale = _NUMBERS[q.dtype], eps, scale
        _run("kt_cpu_attend", call)
        return y

    def route(
        self, x: torch.Tensor, weight: torch.Tensor, top_k: int, normalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens, experts = x.shape[0], weight.shape[0]
        logits = _logits(x, weight)
        scores = torch.empty(tokens, top_k, dtype=x.dtype)
        ids = torch.empty(tokens, top_k, dtype=torch.int64)
        ffi = native().ffi
        call = ffi.new("struct kt_cpu_choose *")
        call.logits = ffi.cast("float *", logits.data_ptr())
        _fill(call.scores, scores, top_k)
        call.ids = ffi.cast("int64_t *", ids.data_ptr())
        call.tokens, call.experts, call.top_k = tokens, experts, top_k
        call.normalize = normalize
        _run("kt_cpu_choose", call)
        return logits, scores, ids

    def together(self, layers: Sequence[nn.Module]) -> Any:
        return lambda x: [layer(x) for layer in layers]


_POOLED_FROM = 4
"""Threads from which the pool reads a router's weight faster than torch's one does in a decode step."""


def _logits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` in float32; ``weight`` is a plain tensor."""
    module = native()
    if module.lib.kt_cpu_pool_threads() < _POOLED_FROM or not weight.is_contiguous():
        return torch.nn.functional.linear(x, weight).float().contiguous()
    x = x.contiguous()
    logits = torch.empty(x.shape[0], weight.shape[0])
    call = module.ffi.new("struct kt_cpu_linear *")
    call.weight.data, call.weight.type = _pointer(weight), _WEIGHT_TYPES[weight.dtype]
    call.weight.rows, call.weight.cols = weight.shape
    call.weight.row_bytes = weight.shape[1] * weight.element_size()
    _fill(call.x, x, weight.shape[1])
    _fill(call.y, logits, weight.shape[0])
    # In two terms, where the kernel rounds activations at all: routers stay precise.
    call.tokens, call.split = x.shape[0], 1
    _run("kt_cpu_linear", call)
    return logits


def _fill(target: Any, tensor: torch.Tensor, cols: int) -> None:
    """Describe a contiguous tensor as rows of ``cols`` values (``struct kt_cpu_rows``)."""
    target.data = _pointer(tensor)
    target.row_bytes = cols * tensor.element_size()
    target.dtype = _NUMBERS[tensor.dtype]


def _pointer(tensor: torch.Tensor) -> Any:
    return native().ffi.cast("void *", tensor.data_ptr())


def _run(name: str, call: Any) -> None:
    module = native()
    check(getattr(module.lib, name)(call), name)


_KERNELS = _CpuStep()


class RMSNorm(fused.RMSNorm):
    """``kt_ops_cpu.RMSNorm``: one call."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS


class Attention(fused.Attention):
    """``kt_ops_cpu.Attention``: one call beside the projections, over a cache that grows in place."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """See :meth:`kt_core.operators.fused.Attention.replace`; long caches are read by the pool."""
        ensure_pool()
        return super().replace(original, context)


class DecoderLayer(fused.DecoderLayer):
    """``kt_ops_cpu.DecoderLayer``: the first sum and the norm behind it are one call."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS


class Router(fused.Router):
    """``kt_ops_cpu.Router``: logits and choice are two calls."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS
