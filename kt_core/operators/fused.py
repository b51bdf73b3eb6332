"""Operators for what surrounds the matrix products of a decoder layer, over a plugin's fused kernels.

A decode step in transformers' modules is some sixty small torch operations a layer, each of which costs
more to start than to do. The operators here keep transformers' modules, classes and weights, and answer
the calls that kernels cover with a handful; every other call runs the module's own forward. A plugin
subclasses them and names its kernels (:class:`StepKernels`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext


class StepKernels(Protocol):
    """A plugin's kernels. All take activations that :meth:`serves` accepted, and weights of their dtype."""

    head_dims: Sequence[int]
    """Head sizes that :meth:`attend` covers."""
    most_experts: int
    most_chosen: int
    """Experts that :meth:`route` can choose among, and for one token."""

    def serves(self, x: torch.Tensor) -> bool:
        """Whether ``x`` has the device and dtype of these kernels, and values at all."""

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
    ) -> torch.Tensor:
        """``x / sqrt(mean(x^2) + eps) * (offset + weight)`` over the last dimension."""

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``x + residual``, and its :meth:`norm`."""

    def cache_layer(self, layer: Any) -> bool:
        """Whether :meth:`attend` can append to this layer of transformers' cache."""

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
        """One token's attention: ``q``, ``k``, ``v`` ``(1, 1, heads * dim)`` to the shape of ``q``.

        Heads of q and k are normalised by ``weights`` ``(dim,)`` where given and rotated by halves with
        cosine and sine ``angles`` ``(1, 1, rotary)``; key and value are appended to ``layer``. The last
        ``window`` tokens are visible (0: all).
        """

    def route(
        self, x: torch.Tensor, weight: torch.Tensor, top_k: int, normalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, weights and ids ``(tokens, top_k)`` of a softmax router, for a few tokens."""

    def together(self, layers: Sequence[nn.Module]) -> Any:
        """What maps ``x`` to the results of ``layers``, in order."""


ROUTED_AT_ONCE = 8
"""From more tokens on, a library's matmul reads the router's weight fewer times."""


def with_forward(original: nn.Module, mixin: type, kernels: StepKernels) -> Any:
    """Return ``original`` with ``mixin`` before its class, so that ``super().forward`` is its own.

    Parameters and children are shared until the caller puts others in their place; ``original`` itself
    is left as it was.
    """
    fused = copy.copy(original)
    for name in ("_modules", "_parameters", "_buffers"):
        fused.__dict__[name] = dict(original.__dict__[name])
    fused.__dict__["kernels"] = kernels
    fused.__class__ = _mixed(mixin, type(original))  # type: ignore[arg-type]
    return fused


@functools.cache
def _mixed(mixin: type, base: type) -> type:
    return type(base.__name__, (mixin, base), {"__module__": mixin.__module__})


class RMSNorm(Operator):
    """Stands for transformers' root mean square norms ``(…, hidden)``; sums in float32, rounds once."""

    keeps_shape: ClassVar[bool] = True
    kernels: ClassVar[StepKernels]

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        source: Any = original
        self.weight = source.weight
        self.variance_epsilon = float(getattr(source, "variance_epsilon", 0.0) or source.eps)
        # Gemma stores the distance from one.
        self.offset = 1.0 if "Gemma" in type(original).__name__ else 0.0

    def load(self, weights: ModuleWeights) -> None:
        """Take the weight in the activations' dtype."""
        stored = weights.packed("weight")
        if stored is not None:
            value = stored.to_torch(self.context.dtype, self.context.device)
            self.weight = nn.Parameter(value, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        same = self.weight.dtype == x.dtype  # kernels read both as one dtype
        if same and x.shape[-1] % 8 == 0 and self.kernels.serves(x):
            kernels = self.kernels
            y: torch.Tensor = kernels.norm(x, self.weight, self.variance_epsilon, self.offset)
            return y
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        scaled: torch.Tensor = wide * (self.offset + self.weight.float())
        return scaled.to(x.dtype)

    def extra_repr(self) -> str:
        """As transformers prints it."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class _Kept(Operator):
    """An operator that is the original with another forward; its parts are loaded like any other's."""

    kernels: ClassVar[StepKernels]

    def load(self, weights: ModuleWeights) -> None:
        """Never called: what stands in the model is no operator."""


class Attention(_Kept):
    """Stands for transformers' attention of Llama's kind: projections, rotation by halves, grouped heads.

    One token over a cache that the kernels can append to runs the fused one: norms of the heads,
    rotation, cache, softmax. The projections stay modules, so that rules can give them kernels.
    """

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return ``original`` with the fused step, or as it is where the kernels do not cover it."""
        source: Any = original
        norms = [getattr(source, name, None) for name in ("q_norm", "k_norm")]
        covered = source.head_dim in cls.kernels.head_dims and all(
            norm is None or tuple(norm.weight.shape) == (source.head_dim,) for norm in norms
        )
        if not covered:
            return original
        fused: nn.Module = with_forward(original, _FusedStep, cls.kernels)
        return fused


class _FusedStep(nn.Module):
    """The forward that is put before the original's."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the original's, with the arguments that transformers' decoder layers give."""
        own: Any = self
        layer = None if args else _cache_layer(own, kwargs)
        if (
            layer is None
            or hidden_states.shape[:2] != (1, 1)
            or not own.kernels.serves(hidden_states)
            or layer.keys.dtype != hidden_states.dtype
            or _hides(kwargs.get("attention_mask"))
            or not _norms_as(own, hidden_states.dtype)
        ):
            return super().forward(hidden_states, *args, **kwargs)
        if "together" not in own.__dict__:
            own.__dict__["together"] = own.kernels.together((own.q_proj, own.k_proj, own.v_proj))
            own.__dict__["window"] = _window(own)
        q, k, v = own.together(hidden_states)
        q_norm, k_norm = own._modules.get("q_norm"), own._modules.get("k_norm")
        y = own.kernels.attend(
            q,
            k,
            v,
            kwargs["position_embeddings"],
            (getattr(q_norm, "weight", None), getattr(k_norm, "weight", None)),
            layer,
            window=own.window,
            eps=0.0 if q_norm is None else float(q_norm.variance_epsilon),
            scale=float(own.scaling),
        )
        return own.o_proj(y), None


def _cache_layer(module: Any, kwargs: Any) -> Any:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    layers = getattr(cache, "layers", ())
    layer = layers[module.layer_idx] if module.layer_idx < len(layers) else None
    return layer if layer is not None and module.kernels.cache_layer(layer) else None


def _norms_as(module: Any, dtype: torch.dtype) -> bool:
    """Whether the heads' norms, if there are any, have weights in ``dtype``: kernels read both as one."""
    norms = (module._modules.get(name) for name in ("q_norm", "k_norm"))
    return all(norm is None or norm.weight.dtype is dtype for norm in norms)


def _hides(mask: torch.Tensor | None) -> bool:
    """Whether ``mask`` hides a cached token. One on a GPU is the captured step's, which hides none."""
    if mask is None or mask.device.type != "cpu":
        return False
    return not bool(mask.all()) if mask.dtype is torch.bool else bool(mask.any())


def _window(module: Any) -> int:
    if hasattr(module, "sliding_window"):
        return int(module.sliding_window or 0)
    kinds = getattr(module.config, "layer_types", None)
    if kinds and kinds[module.layer_idx] != "sliding_attention":
        return 0
    return int(getattr(module.config, "sliding_window", None) or 0)


class DecoderLayer(_Kept):
    """Stands for transformers' layers of Llama's kind: norm, attention, sum, norm, MLP, sum."""

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return ``original`` with the first sum fused into the norm behind it."""
        fused: nn.Module = with_forward(original, _FusedSum, cls.kernels)
        return fused


class _FusedSum(nn.Module):
    """The forward that is put before the original's."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the original's, with the arguments that transformers' models give."""
        own: Any = self
        norm = own.post_attention_layernorm
        if (
            args
            or not isinstance(norm, RMSNorm)
            or norm.weight.dtype != hidden_states.dtype
            or not own.kernels.serves(hidden_states)
        ):
            return super().forward(hidden_states, *args, **kwargs)
        normed = own.input_layernorm(hidden_states)
        attended, _ = own.self_attn(hidden_states=normed, **kwargs)
        total, normed = own.kernels.add_norm(
            attended, hidden_states, norm.weight, norm.variance_epsilon, norm.offset
        )
        return total + own.mlp(normed)


class Router(_Kept):
    """Stands for transformers' softmax routers: ``(tokens, hidden)`` to logits, weights and ids.

    The weight keeps the dtype it has. Logits are summed and compared in float32.
    """

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return ``original`` with the fused choice, or as it is where the kernels do not cover it."""
        source: Any = original
        experts, hidden = source.weight.shape
        covered = (
            experts <= cls.kernels.most_experts
            and source.top_k <= cls.kernels.most_chosen
            and hidden % 8 == 0
        )
        if not covered:
            return original
        fused: nn.Module = with_forward(original, _FusedChoice, cls.kernels)
        return fused


class _FusedChoice(nn.Module):
    """The forward that is put before the original's."""

    def forward(self, hidden_states: torch.Tensor) -> Any:
        """Logits ``(tokens, experts)``, weights and ids ``(tokens, top_k)``."""
        own: Any = self
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        if x.shape[0] > ROUTED_AT_ONCE or own.weight.dtype != x.dtype or not own.kernels.serves(x):
            return super().forward(hidden_states)
        # Mixtral always divides by the sum and has no switch for it.
        normalize = bool(getattr(own, "norm_topk_prob", True))
        return own.kernels.route(x, own.weight, own.top_k, normalize)
