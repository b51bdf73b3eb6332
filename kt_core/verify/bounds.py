"""How far each module of a plan may be from the reference, and for which reason."""

from __future__ import annotations

import torch

from kt_core.operators.kernel import Kernel, KernelContext
from kt_core.plan.model import KernelPlan, ModulePlan, Plan
from kt_core.registry.registry import Registry
from kt_core.verify import report as reports
from kt_core.verify.compare import DTYPE_BOUNDS, Bound
from kt_core.weights import WeightSource

PARTS_TOGETHER = 4.0
"""A module made of others may be off by so many times what its least exact part may."""


class Bounds:
    """Bounds of modules by path and phase, each found once."""

    def __init__(self, plan: Plan, source: WeightSource, registry: Registry) -> None:
        self._plan = plan
        self._source = source
        self._registry = registry
        self._found: dict[tuple[str, str], Bound] = {}
        self.dtype = DTYPE_BOUNDS[plan.dtype]

    def of(self, name: str, planned: ModulePlan | None, phase: str) -> Bound:
        """What is allowed of the module ``name`` in ``phase``."""
        key = (name, phase)
        if key not in self._found:
            self._found[key] = self._find(name, planned, phase)
        return self._found[key]

    def parts_of(self, name: str) -> list[ModulePlan]:
        """Modules with weights inside the module ``name``."""
        begin = f"{name}."
        return [
            m for m in self._plan.modules if m.path.startswith(begin) and (m.bindings or m.decode)
        ]

    def _find(self, name: str, planned: ModulePlan | None, phase: str) -> Bound:
        kernel = None
        if planned is not None:
            kernel = planned.prefill if phase == reports.PREFILL else planned.decode
        if planned is not None and kernel is not None:
            return self._promise(planned, kernel)
        parts = [self.of(inner.path, inner, phase) for inner in self.parts_of(name)]
        if not parts:
            return self.dtype
        least = max((self.dtype, *parts), key=lambda bound: bound.relative)
        return Bound(PARTS_TOGETHER * least.relative, f"its parts together: {least.why}")

    def _promise(self, planned: ModulePlan, kernel: KernelPlan) -> Bound:
        found = self._registry.kernel(kernel.name)
        if found is None:
            return self.dtype
        target: type[Kernel] = self._registry.load_target(found.spec)
        context = KernelContext(
            planned.path,
            getattr(torch, self._plan.dtype),
            torch.device(kernel.device),
            kernel.options,
        )
        infos = [self._source.tensors[name] for name in planned.tensors]
        promised = target.accuracy(None, infos, context)
        if promised is None:
            return self.dtype
        return Bound(self.dtype.relative + promised.relative, promised.why)
