"""The weights of one module, taken from the file the way the plan bound them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kt_core.models.binding import COLUMNS, ExpertsBinding
from kt_core.models.transforms import apply
from kt_core.operators.kernel import ExpertsWeights
from kt_core.operators.operator import ModuleWeights
from kt_core.plan.model import ModulePlan
from kt_core.weights import PackedTensor, WeightSource


class BoundWeights(ModuleWeights):
    """Reads through ``source``; every call makes new views."""

    def __init__(self, plan: ModulePlan, source: WeightSource) -> None:
        self._plan = plan
        self._source = source
        self._bindings = {b.parameter.rpartition(".")[2]: b for b in plan.bindings}

    def packed(self, parameter: str) -> PackedTensor | None:
        """See :class:`ModuleWeights`."""
        binding = self._bindings.get(parameter)
        if binding is None:
            return None
        tensors = [self._source.tensor(name) for name in binding.tensors]
        return apply(binding.transform, tensors, binding.args)

    def experts(self) -> ExpertsWeights:
        """See :class:`ModuleWeights`."""
        binding = self._plan.experts
        if binding is None:
            raise LookupError(self._plan.path)
        gate, up, down = (self._each(names) for names in (binding.gate, binding.up, binding.down))
        if binding.layout == COLUMNS:
            fused = [_upright(tensor) for tensor in self._each(binding.gate_up)]
            gate = [tensor.rows(np.arange(0, tensor.shape[0], 2)) for tensor in fused]
            up = [tensor.rows(np.arange(1, tensor.shape[0], 2)) for tensor in fused]
            down = [_upright(tensor) for tensor in down]
        elif binding.gate_up:
            fused = self._each(binding.gate_up)
            half = fused[0].shape[0] // 2
            gate = [tensor.rows(slice(0, half)) for tensor in fused]
            up = [tensor.rows(slice(half, None)) for tensor in fused]
        return ExpertsWeights(gate, up, down, *self._biases(binding))

    def _each(self, names: Sequence[str]) -> list[PackedTensor]:
        if len(names) == 1:
            return self._source.tensor(names[0]).unstack()
        return [self._source.tensor(name) for name in names]

    def _biases(self, binding: ExpertsBinding) -> tuple[torch.Tensor | None, ...]:
        """Gate, up and down biases ``(experts, width)`` in float32."""
        gate, up, both, down = (
            self._source.tensor(names[0]).to_torch(torch.float32) if names else None
            for names in (
                binding.gate_bias,
                binding.up_bias,
                binding.gate_up_bias,
                binding.down_bias,
            )
        )
        if both is not None and binding.layout == COLUMNS:
            gate, up = both[:, 0::2].contiguous(), both[:, 1::2].contiguous()
        elif both is not None:
            gate, up = (half.contiguous() for half in both.chunk(2, dim=1))
        return gate, up, down


def _upright(tensor: PackedTensor) -> PackedTensor:
    """``(in, out)`` to ``(out, in)``."""
    return apply("transposed", [tensor], {})
