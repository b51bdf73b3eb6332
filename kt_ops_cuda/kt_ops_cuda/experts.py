"""The experts kernels: ``kt_ops_cuda.experts`` and ``kt_ops_cuda.gguf_experts``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from kt_core.operators.kernel import (
    Accuracy,
    Activation,
    ExpertsKernel,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
)
from kt_core.weights import TensorInfo
from kt_ops_cuda import native, ops, refuse
from kt_ops_cuda.layout import packed_bytes, padded
from kt_ops_cuda.linear import check_activations, compute_dtype
from kt_ops_cuda.packing import interleave, interleave_blocks, pack_blocks
from kt_ops_cuda.quantize import Report, combined
from kt_ops_cuda.stored import Policy

_LOG = logging.getLogger(__name__)

_ACTIVATIONS = {
    "silu": native.SILU,
    "gelu": native.GELU,
    "gelu_tanh": native.GELU_TANH,
    "swiglu_oai": native.SWIGLU_OAI,
    "relu": native.RELU,
}


class MarlinExperts(ExpertsKernel):
    """All routed experts of a layer in three or four launches.

    Gate and up with their activation are one, down is the next, the weighted sum the third; before
    them, another sorts tokens by expert when there are many.

    A CUDA graph may capture :meth:`forward`; ids out of range are then skipped rather than raised.
    float32 activations are rounded to bfloat16.
    """

    graph_safe: ClassVar[bool] = True
    exact_only: ClassVar[bool] = False

    def __init__(self, shape: ExpertsShape, activation: Activation, context: KernelContext) -> None:
        super().__init__(shape, activation, context)
        self.report: Report | None = None
        self._packed: tuple[torch.Tensor, torch.Tensor] | None = None
        self._formats = (-1, -1)
        self._biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        self._bad_id: torch.Tensor | None = None

    @classmethod
    def check(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Reasons why the stored types, sizes or options cannot be served."""
        policy = Policy.of(context.options, cls.exact_only)
        stored = {info.type for info in weights if len(info.shape) >= 2 and info.numel > 1}
        reasons = [reason for kind in sorted(stored) for reason in policy.reasons(kind)]
        if shape.hidden_size % 8:
            reasons.append(f"hidden size {shape.hidden_size} is not a multiple of 8")
        if shape.num_experts > 2048:
            reasons.append(f"{shape.num_experts} experts; at most 2048 are sorted")
        return reasons

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Packed size of gate and up woven together, and down, padding included."""
        policy = Policy.of(context.options, cls.exact_only)
        formats = [policy.format(info.type) for info in weights]
        known = [fmt for fmt in formats if fmt is not None]
        if not known:
            return sum(info.nbytes for info in weights)
        inner = packed_bytes(known[0], 2 * padded(shape.intermediate_size, 32), shape.hidden_size)
        outer = packed_bytes(known[-1], shape.hidden_size, shape.intermediate_size)
        return int(shape.num_experts * (inner + outer))

    @classmethod
    def accuracy(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy:
        """Of types that are kept exactly only activations are rounded, others lose what they lose."""
        policy = Policy.of(context.options, cls.exact_only)
        return policy.accuracy([info.type for info in weights if len(info.shape) > 1])

    def load(self, weights: ExpertsWeights) -> None:
        """Bring the experts to the device one by one and pack them there."""
        context, shape = self.context, self.shape
        policy = Policy.of(context.options, self.exact_only)
        stored = {t.type for t in (*weights.gate, *weights.up, *weights.down)}
        reasons = [reason for kind in sorted(stored) for reason in policy.reasons(kind)]
        for what, tensors in (("gate", weights.gate), ("up", weights.up), ("down", weights.down)):
            if len(tensors) != shape.num_experts:
                reasons.append(f"{what} has {len(tensors)} experts, not {shape.num_experts}")
            if len({policy.format(t.type) for t in tensors}) > 1:
                reasons.append(f"{what} is stored differently from expert to expert")
        if {policy.format(t.type) for t in weights.gate} != {
            policy.format(t.type) for t in weights.up
        }:
            reasons.append("gate and up are stored differently, and share one product here")
        if reasons:
            raise refuse.bad_weight(context.name, reasons)
        try:
            self._load(policy, weights)
        except torch.OutOfMemoryError as error:
            needed = 24 * shape.hidden_size * shape.intermediate_size
            raise refuse.out_of_memory(context.name, needed, context.device) from error
        if self.report is not None:
            _LOG.info("%s: quantised, %s", context.name, self.report)

    def _load(self, policy: Policy, weights: ExpertsWeights) -> None:
        device, shape = self.context.device, self.shape
        inner: torch.Tensor | None = None
        outer: torch.Tensor | None = None
        reports = []
        for e in range(shape.num_experts):
            gate, gate_report = policy.blocks(weights.gate[e], device)
            up, up_report = policy.blocks(weights.up[e], device)
            down, down_report = policy.blocks(weights.down[e], device)
            woven = pack_blocks(interleave_blocks(gate, up))
            plain = pack_blocks(down)
            if inner is None or outer is None:
                inner = woven.new_empty((shape.num_experts, woven.numel()))
                outer = plain.new_empty((shape.num_experts, plain.numel()))
            inner[e], outer[e] = woven, plain
            self._formats = (gate.fmt.number, down.fmt.number)
            reports += [r for r in (gate_report, up_report, down_report) if r is not None]
        if inner is None or outer is None:
            raise refuse.bad_weight(self.context.name, ["there are no experts"])
        self._packed = (inner, outer)
        self._biases = (self._inner_bias(weights), self._outer_bias(weights))
        self._bad_id = torch.zeros(1, dtype=torch.int32, device=device)
        self.report = combined(reports) if reports else None

    def _inner_bias(self, weights: ExpertsWeights) -> torch.Tensor | None:
        gate, up = weights.gate_bias, weights.up_bias
        if gate is None and up is None:
            return None
        zeros = torch.zeros(self.shape.num_experts, self.shape.intermediate_size)
        gate, up = zeros if gate is None else gate, zeros if up is None else up
        woven = interleave(gate.float().T, up.float().T).T
        return woven.contiguous().to(self.context.device)

    def _outer_bias(self, weights: ExpertsWeights) -> torch.Tensor | None:
        if weights.down_bias is None:
            return None
        bias = weights.down_bias.float()
        missing = padded(bias.shape[1], 64) - bias.shape[1]
        return torch.nn.functional.pad(bias, (0, missing)).to(self.context.device)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """See :meth:`kt_core.operators.kernel.ExpertsKernel.forward`.

        Raises:
            KernelError: KT552 for activations it cannot take, KT556 before :meth:`load`, KT557 for
                an expert id out of range (not inside a captured graph), KT551 or KT555 if the GPU
                refuses.
        """
        name, shape = self.context.name, self.shape
        if self._packed is None or self._bad_id is None:
            raise refuse.not_loaded(name)
        check_activations(name, hidden_states, shape.hidden_size, self.context.device)
        x = hidden_states.reshape(-1, shape.hidden_size)
        if top_k_index.shape != top_k_weights.shape or top_k_index.shape[:1] != x.shape[:1]:
            raise refuse.bad_input(
                name,
                f"{x.shape[0]} tokens",
                f"ids {list(top_k_index.shape)}, weights {list(top_k_weights.shape)}",
            )
        scores = top_k_weights
        if scores.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            scores = scores.float()
        y: torch.Tensor = ops.experts(
            x.to(compute_dtype(x.dtype)),
            top_k_index.to(torch.int64),
            scores,
            *self._packed,
            *self._biases,
            self._bad_id,
            *self._formats,
            shape.num_experts,
            shape.intermediate_size,
            _ACTIVATIONS[self.activation.kind],
            self.activation.alpha,
            self.activation.limit,
        )
        if not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing():
            self._raise_bad_id()
        return y.to(hidden_states.dtype).view(hidden_states.shape)

    def _raise_bad_id(self) -> None:
        if self._bad_id is not None and int(self._bad_id.item()) != 0:
            self._bad_id.zero_()
            raise refuse.bad_expert(self.context.name, self.shape.num_experts)


class GgufExperts(MarlinExperts):
    """As :class:`MarlinExperts`, for stored types it keeps exactly and no others."""

    exact_only = True
