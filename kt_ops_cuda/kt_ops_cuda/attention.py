"""``kt_ops_cuda.Attention``: a decode step's attention over a cache of fixed size in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.models.hf_static import FixedLayer
from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext
from kt_ops_cuda import decode_ops
from kt_ops_cuda.fused import with_forward
from kt_ops_cuda.linear import COMPUTE_DTYPES
from kt_ops_cuda.merged import Together


class Attention(Operator):
    """Stands for transformers' attention of Llama's kind: projections, rotation by halves, grouped heads.

    One token over a cache of fixed size, which is what a captured graph decodes, runs the fused kernel:
    norms of the heads, rotation, cache, softmax. Everything else runs the module's own forward. The
    projections stay modules, so that rules can give them kernels.
    """

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return ``original`` with the fused step, or as it is where the kernel does not cover it."""
        source: Any = original
        norms = [getattr(source, name, None) for name in ("q_norm", "k_norm")]
        covered = source.head_dim in decode_ops.HEAD_DIMS and all(
            norm is None or tuple(norm.weight.shape) == (source.head_dim,) for norm in norms
        )
        return with_forward(original, _FusedStep) if covered else original  # type: ignore[no-any-return]

    def load(self, weights: ModuleWeights) -> None:
        """Never called: the projections and norms are loaded like any other module's."""


class _FusedStep(nn.Module):
    """The forward that is put before the original's."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the original's, with the arguments that transformers' decoder layers give."""
        layer = _fixed_layer(self, kwargs)
        if (
            layer is None
            or args
            or hidden_states.shape[:2] != (1, 1)
            or not hidden_states.is_cuda
            or hidden_states.dtype not in COMPUTE_DTYPES
            or layer.keys.dtype != hidden_states.dtype
        ):
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        own: Any = self
        cosine, sine = kwargs["position_embeddings"]
        q_norm, k_norm = getattr(own, "q_norm", None), getattr(own, "k_norm", None)
        if "together" not in own.__dict__:
            own.__dict__["together"] = Together((own.q_proj, own.k_proj, own.v_proj))
        q, k, v = own.together(hidden_states)
        room = layer.keys.shape[2]
        partial, arrived = _scratch(layer, q.numel() // own.head_dim)
        y = decode_ops.attend(
            q,
            k,
            v,
            cosine,
            sine,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            layer.keys,
            layer.values,
            layer.position,
            partial,
            arrived,
            decode_ops.chunk_of(room),
            _window(own),
            0.0 if q_norm is None else float(q_norm.variance_epsilon),
            float(own.scaling),
        )
        return own.o_proj(y), None


def _fixed_layer(module: Any, kwargs: Any) -> FixedLayer | None:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    layers = getattr(cache, "layers", ())
    layer = layers[module.layer_idx] if module.layer_idx < len(layers) else None
    return layer if isinstance(layer, FixedLayer) else None


def _scratch(layer: Any, q_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept with the cache, which serves one sequence: two of them never share it."""
    if layer.scratch is None:
        _, kv_heads, room, head_dim = layer.keys.shape
        layer.scratch = decode_ops.attend_scratch(
            q_heads, kv_heads, head_dim, room, layer.keys.device
        )
    scratch: tuple[torch.Tensor, torch.Tensor] = layer.scratch
    return scratch


def _window(module: Any) -> int:
    if hasattr(module, "sliding_window"):
        return int(module.sliding_window or 0)
    kinds = getattr(module.config, "layer_types", None)
    if kinds and kinds[module.layer_idx] != "sliding_attention":
        return 0
    return int(getattr(module.config, "sliding_window", None) or 0)
