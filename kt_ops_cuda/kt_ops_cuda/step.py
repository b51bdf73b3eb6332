"""The operators around the products of a decode step, by the kernels of ``decode_ops.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from kt_core.models.hf_static import FixedLayer
from kt_core.operators import fused
from kt_ops_cuda import decode_ops
from kt_ops_cuda.linear import COMPUTE_DTYPES
from kt_ops_cuda.merged import Together


class _CudaStep:
    """See :class:`kt_core.operators.fused.StepKernels`."""

    head_dims: Sequence[int] = decode_ops.HEAD_DIMS
    most_experts = decode_ops.MOST_EXPERTS
    most_chosen = decode_ops.MOST_CHOSEN

    def serves(self, x: torch.Tensor) -> bool:
        return x.is_cuda and x.dtype in COMPUTE_DTYPES and x.numel() > 0

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
    ) -> torch.Tensor:
        y: torch.Tensor = decode_ops.rms_norm(x, weight, eps, offset)
        return y

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, y = decode_ops.add_rms_norm(x, residual, weight, eps, offset)
        return total, y

    def cache_layer(self, layer: Any) -> bool:
        return isinstance(layer, FixedLayer)

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
        _, kv_heads, room, head_dim = layer.keys.shape
        if layer.scratch is None:
            # Kept with the cache, which serves one sequence: two of them never share it.
            layer.scratch = decode_ops.attend_scratch(
                q.numel() // head_dim, kv_heads, head_dim, room, q.device
            )
        y: torch.Tensor = decode_ops.attend(
            q,
            k,
            v,
            *angles,
            *weights,
            layer.keys,
            layer.values,
            layer.position,
            *layer.scratch,
            decode_ops.chunk_of(room),
            window,
            eps,
            scale,
        )
        return y

    def route(
        self, x: torch.Tensor, weight: torch.Tensor, top_k: int, normalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, scores, ids = decode_ops.router(x, weight, top_k, normalize)
        return logits, scores, ids

    def together(self, layers: Sequence[nn.Module]) -> Together:
        return Together(layers)


_KERNELS = _CudaStep()


class RMSNorm(fused.RMSNorm):
    """``kt_ops_cuda.RMSNorm``: one launch."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS


class Attention(fused.Attention):
    """``kt_ops_cuda.Attention``: one launch beside the projections, over a cache of fixed size."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS


class DecoderLayer(fused.DecoderLayer):
    """``kt_ops_cuda.DecoderLayer``: the first sum and the norm behind it are one launch."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS


class Router(fused.Router):
    """``kt_ops_cuda.Router``: logits and choice are two launches."""

    kernels: ClassVar[fused.StepKernels] = _KERNELS
