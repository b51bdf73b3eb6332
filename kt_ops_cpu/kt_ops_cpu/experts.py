"""``kt_ops_cpu.experts``: the routed experts of a layer, computed on their packed weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import Accuracy, ExpertsKernel, ExpertsWeights, KernelContext
from kt_core.weights import PackedTensor, TensorInfo
from kt_ops_cpu.library import check, native
from kt_ops_cpu.limits import measure_limits
from kt_ops_cpu.matrices import (
    bias_pointer,
    check_activations,
    matrix,
    parts,
    pointer_types,
    reasons,
    row_major,
    set_rows,
)
from kt_ops_cpu.options import always_split, split_from
from kt_ops_cpu.pool import ensure_pool
from kt_ops_cpu.rounding import rounding

TOKENS_PER_CALL = 2048
"""Most tokens in one native call: between calls Python sees signals such as Ctrl-C."""

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "swiglu_oai": 3, "relu": 4}
"""Gate activations, as ``enum kt_cpu_act``."""


class CpuExperts(ExpertsKernel):
    """Runs every token through its experts, all experts of the call in one native pass.

    Accuracy is that of :class:`kt_ops_cpu.linear.CpuLinear` for each of the three products; between
    them values are float32; ``activation_bits: 16`` holds for all three. The result does not depend
    on the number of threads.
    """

    own_threads = True

    @classmethod
    def check(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Return the reasons why these experts cannot be served."""
        return reasons(weights, context.dtype)

    @classmethod
    def accuracy(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy | None:
        """That of two linear layers, one behind the other."""
        return rounding(weights, split=always_split(context.options), layers=2)

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """Measured with the pool's own threads and instructions."""
        return measure_limits().by_name()

    def load(self, weights: ExpertsWeights) -> None:
        """Keep views of all experts; nothing of them is copied.

        Raises:
            KernelError: KT502, KT513; KT507 and KT514 from the option ``threads``.
        """
        ensure_pool(self.context.options.get("threads"))
        name, shape = self.context.name, self.shape
        if self.activation.kind not in ACTIVATIONS:
            raise KernelError.of(
                "KT513",
                f'{name}: the activation "{self.activation.kind}" is not served',
                facts=[f"served: {', '.join(ACTIVATIONS)}"],
            )
        inner = (shape.intermediate_size, shape.hidden_size)
        shapes, pointers = {}, {}
        for part, tensors, size in (
            ("gate", weights.gate, inner),
            ("up", weights.up, inner),
            ("down", weights.down, inner[::-1]),
        ):
            shapes[part], pointers[part] = self._views(part, tensors, size)
        experts = shape.num_experts
        biases = {
            "gate_bias": (weights.gate_bias, (experts, shape.intermediate_size)),
            "up_bias": (weights.up_bias, (experts, shape.intermediate_size)),
            "down_bias": (weights.down_bias, (experts, shape.hidden_size)),
        }
        kept = {part: bias_pointer(bias, size, name) for part, (bias, size) in biases.items()}
        self._kept = (weights, pointers, kept)
        self._split = split_from(self.context.options)
        self._call_type = native().ffi.typeof("struct kt_cpu_experts *")
        self._layer = native().ffi.new(
            "struct kt_cpu_experts_layer *",
            {
                "experts": experts,
                **{f"{part}_shape": struct[0] for part, struct in shapes.items()},
                **pointers,
                **{part: pointer for part, (_, pointer) in kept.items()},
                "act": ACTIVATIONS[self.activation.kind],
                "alpha": self.activation.alpha,
                "limit": self.activation.limit,
            },
        )

    def _views(
        self, part: str, tensors: Sequence[PackedTensor], size: tuple[int, int]
    ) -> tuple[Any, Any]:
        """Check one view per expert; return the struct they share and their addresses."""
        name = f"{self.context.name} {part}"
        if len(tensors) != self.shape.num_experts:
            raise KernelError.of(
                "KT502", f"{name}: {len(tensors)} experts given, {self.shape.num_experts} needed"
            )
        structs = [matrix(tensor, size, name) for tensor in tensors]
        first = structs[0]
        for tensor, struct in zip(tensors, structs, strict=True):
            if (struct.type, struct.row_bytes) != (first.type, first.row_bytes):
                raise KernelError.of(
                    "KT502",
                    f"{name}: {tensor.name} is {tensor.type}, {tensors[0].name} is "
                    f"{tensors[0].type}; the experts of a layer must be stored alike",
                )
        return first, native().ffi.new("void const *[]", [struct.data for struct in structs])

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """See :meth:`kt_core.operators.kernel.ExpertsKernel.forward`.

        Raises:
            KernelError: KT501 before :meth:`load`, KT503 for an expert id out of range, KT505 for
                unfit activations, KT508 to KT510, KT511 for unfit ids or weights.
        """
        name = self.context.name
        if not hasattr(self, "_layer"):
            raise KernelError.of("KT501", f"{name} was given no weights")
        check_activations(hidden_states, self.shape.hidden_size, name)
        ids, scores = self._routing(hidden_states, top_k_index, top_k_weights)
        x = row_major(hidden_states)
        y = x.new_empty(x.shape)
        tokens, top_k = ids.shape
        if top_k == 0:
            return y.zero_()
        module = native()
        cast, _, int64s, floats = pointer_types()
        for some_x, some_y, some_ids, some_scores in parts(
            tokens, TOKENS_PER_CALL, x, y, ids, scores
        ):
            call = module.ffi.new(self._call_type)
            call.layer = self._layer
            set_rows(call.x, some_x)
            set_rows(call.y, some_y)
            call.ids = cast(int64s, some_ids.data_ptr())
            call.weights = cast(floats, some_scores.data_ptr())
            call.tokens = some_x.size(0)
            call.top_k = top_k
            call.split = self._split(tokens)
            status = module.lib.kt_cpu_experts(call)
            if status:
                check(status, name, self._facts(status, ids))
        return y

    def _facts(self, status: int, ids: torch.Tensor) -> list[str]:
        if status != native().lib.KT_CPU_EXPERT_ID:
            return []
        count = self.shape.num_experts
        wrong = ids[(ids < -1) | (ids >= count)]
        return [f"id {int(wrong[0])}; there are {count} experts, from 0 on; -1 is none"]

    def _routing(
        self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Check ids and weights; return them contiguous, as int64 and float32."""
        fits = (
            x.dim() == 2
            and index.dim() == 2
            and index.shape[0] == x.shape[0]
            and weights.shape == index.shape
            and index.dtype in (torch.int64, torch.int32)
            and weights.dtype.is_floating_point
            and index.is_cpu
            and weights.is_cpu
        )
        if not fits:
            raise KernelError.of(
                "KT511",
                f"{self.context.name} needs int64 ids and floating weights of (tokens, k) on cpu",
                facts=[
                    f"activations {list(x.shape)}",
                    f"ids {list(index.shape)} {index.dtype} on {index.device}",
                    f"weights {list(weights.shape)} {weights.dtype} on {weights.device}",
                ],
            )
        return _as(index, torch.int64), _as(weights.detach(), torch.float32)


def _as(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``values`` contiguous in ``dtype``: themselves if they are so already."""
    if values.dtype is dtype and values.is_contiguous():
        return values
    return values.to(dtype).contiguous()
