"""The weights of one module, taken from the file the way the plan bound them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
        return apply(binding.transform, tensors, dict(binding.args))

    def experts(self) -> ExpertsWeights:
        """See :class:`ModuleWeights`."""
        binding = self._plan.experts
        if binding is None:
            raise LookupError(self._plan.path)
        gate, up = self._each(binding.gate), self._each(binding.up)
        if binding.gate_up:
            fused = self._each(binding.gate_up)
            half = fused[0].shape[0] // 2
            gate = [tensor.rows(slice(0, half)) for tensor in fused]
            up = [tensor.rows(slice(half, None)) for tensor in fused]
        return ExpertsWeights(gate, up, self._each(binding.down), **self._biases())

    def _each(self, names: Sequence[str]) -> list[PackedTensor]:
        if len(names) == 1:
            return self._source.tensor(names[0]).unstack()
        return [self._source.tensor(name) for name in names]

    def _biases(self) -> dict[str, torch.Tensor]:
        return {
            name: tensor.to_torch(torch.float32)
            for name in ("gate_bias", "up_bias", "down_bias")
            if (tensor := self.packed(name)) is not None
        }
