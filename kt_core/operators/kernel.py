"""The contract between module operators and the kernels that run in them.

A kernel is built once per module and phase, given its weights once, and then called. It holds no
reference to the model. Two phases that name the same kernel on the same device share one instance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kt_core.weights import PackedTensor, TensorInfo


@dataclass(frozen=True)
class KernelContext:
    """What every kernel is built with.

    ``name`` is the module path it serves, ``dtype`` the model's activation dtype, ``device`` where it
    computes, ``options`` the kwargs of the rule that its ``options_schema`` declares.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    options: Mapping[str, Any]


@dataclass(frozen=True)
class LinearShape:
    """``y[..., out_features] = x[..., in_features] @ weight.T``."""

    in_features: int
    out_features: int


@dataclass(frozen=True)
class ExpertsShape:
    """A layer of ``num_experts`` gated MLPs of width ``intermediate_size``; ``top_k`` run per token."""

    num_experts: int
    hidden_size: int
    intermediate_size: int
    top_k: int


@dataclass(frozen=True)
class Activation:
    """``act(gate) * up`` of an expert.

    ``kind``: ``"silu"``, ``"relu"``, ``"gelu"`` (erf), ``"gelu_tanh"`` or ``"swiglu_oai"``, gpt-oss':
    ``gate = min(gate, limit); up = clamp(up, -limit, limit); (up + 1) * gate * sigmoid(alpha * gate)``.
    """

    kind: str = "silu"
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True)
class ExpertsWeights:
    """Weights of all experts of a layer, one view per expert, zero-copy.

    ``gate[e]`` and ``up[e]`` are ``(intermediate, hidden)``, ``down[e]`` is ``(hidden, intermediate)``.
    Types may differ between the three and between layers. Biases, where the family has them, are
    float32: ``(experts, intermediate)`` and ``(experts, hidden)``.
    """

    gate: Sequence[PackedTensor]
    up: Sequence[PackedTensor]
    down: Sequence[PackedTensor]
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True)
class Accuracy:
    """What a kernel promises: how far it may be from float32 products of the dequantised weights.

    ``relative`` is the root mean square of the difference over that of the result, on ordinary
    activations; ``why`` says what is rounded. ``kt verify`` calls four times as much broken.
    """

    relative: float
    why: str


class Kernel(ABC):
    """Common part. Subclasses raise ``KernelError`` (KT5xx) for anything they cannot compute on."""

    kind: ClassVar[str]

    own_threads: ClassVar[bool] = False
    """Whether the kernel computes with threads of its own, not torch's."""

    graph_safe: ClassVar[bool] = False
    """Whether a CUDA graph may capture :meth:`forward`: no synchronisation, no choice by values."""

    @classmethod
    def check(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Return reasons why this shape, these stored types or options cannot be served (plan time)."""
        return ()

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Return the bytes the loaded kernel occupies on its device, mapped file pages included."""
        return sum(info.nbytes for info in weights)

    @classmethod
    def accuracy(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy | None:
        """Return what :class:`Accuracy` this kernel promises for these weights and options.

        ``None``: it loses nothing but what ``context.dtype`` itself rounds away.
        """
        return None

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """Measure what bounds this kernel on this machine, for ``kt bench``; takes a second or so.

        Names are ``read_gb_per_s`` (weights from memory) and ``int8_gops`` (the instruction that it
        multiplies with; a multiplication and an addition count as two). Nothing: not known.
        """
        return {}


class LinearKernel(Kernel):
    """One phase of ``kt_core.Linear``."""

    kind = "linear"

    def __init__(self, shape: LinearShape, context: KernelContext) -> None:
        self.shape = shape
        self.context = context

    @abstractmethod
    def load(self, weight: PackedTensor, bias: torch.Tensor | None) -> None:
        """Take ``weight`` ``(out_features, in_features)`` and the float32 ``bias`` ``(out_features,)``."""

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` ``(..., in_features)`` on ``context.device`` to ``(..., out_features)``, same dtype.

        Any leading shape, any strides, zero tokens included.
        """


class ExpertsKernel(Kernel):
    """One phase of ``kt_core.Experts``."""

    kind = "experts"

    def __init__(self, shape: ExpertsShape, activation: Activation, context: KernelContext) -> None:
        self.shape = shape
        self.activation = activation
        self.context = context

    @abstractmethod
    def load(self, weights: ExpertsWeights) -> None:
        """Take the weights of every expert."""

    @abstractmethod
    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Map ``hidden_states`` ``(tokens, hidden)`` to the weighted sum over each token's experts.

        ``top_k_index`` is ``(tokens, k)`` int64, where -1 adds nothing and any other id outside
        ``[0, num_experts)`` raises ``KernelError``; ``top_k_weights`` is ``(tokens, k)`` floating.
        A row with non-finite activations must not disturb the others. Zero tokens are allowed.
        """

    def submit(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        """Start :meth:`forward`; return what waits for its result.

        A kernel that computes by itself while Python goes on overrides this. The inputs stay as they are
        until the result was fetched.
        """
        y = self.forward(hidden_states, top_k_index, top_k_weights)
        return lambda: y
