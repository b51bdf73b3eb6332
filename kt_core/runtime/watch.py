"""Hold what plugins put into a model to the shapes that the model expects, at its first calls.

A wrong shape otherwise surfaces somewhere else, as an error of torch, or as a wrong answer where shapes
happen to broadcast. The check is a forward hook that removes itself once it has seen a call of each
phase, so that later calls cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kt_core.errors import KernelError
from kt_core.operators.kernel import ExpertsShape, LinearShape
from kt_core.operators.operator import Operator, PhasedOperator
from kt_core.plan.model import KernelPlan, ModulePlan
from kt_core.registry.registry import Registry


def watch(
    operator: nn.Module, original: nn.Module, plan: ModulePlan, config: Any, registry: Registry
) -> None:
    """Check the first results of ``operator``, which took the place of ``original``.

    A call that returns a wrong shape or dtype raises ``KernelError`` KT590.
    """
    if not isinstance(operator, Operator):
        return
    if isinstance(operator, PhasedOperator):
        shape = type(operator).kernel_shape(original, config)
        width = {LinearShape: "out_features", ExpertsShape: "hidden_size"}.get(type(shape))
        if width is None:
            return
        last: int | None = int(getattr(shape, width))
    elif operator.keeps_shape:
        last = None
    else:
        return
    _Watch(plan, last, registry).attach(operator)


class _Watch:
    """``last`` is the width of results; ``None`` where it is that of the first argument."""

    def __init__(self, plan: ModulePlan, last: int | None, registry: Registry) -> None:
        self.plan = plan
        self.last = last
        self.registry = registry
        self.unseen = {"one token", "several tokens"}

    def attach(self, operator: nn.Module) -> None:
        """Run with every call until both phases were seen."""

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> None:
            x = args[0] if args else next(iter(kwargs.values()), None)
            if not isinstance(x, torch.Tensor):
                return
            self.check(module, x, result)
            tokens = x.numel() // max(1, x.shape[-1])
            self.unseen.discard("one token" if tokens == 1 else "several tokens")
            if not self.unseen:
                handle.remove()

        handle = operator.register_forward_hook(hook, with_kwargs=True)

    def check(self, module: nn.Module, x: torch.Tensor, result: Any) -> None:
        """Raise KT590 unless ``result`` is what ``x`` calls for."""
        y = result[0] if isinstance(result, tuple) and result else result
        expected = [*x.shape[:-1], x.shape[-1] if self.last is None else self.last]
        if isinstance(y, torch.Tensor) and list(y.shape) == expected and y.dtype == x.dtype:
            return
        if not isinstance(y, torch.Tensor):
            got, wanted = type(y).__name__, "a tensor"
        elif list(y.shape) != expected:
            got, wanted = str(list(y.shape)), str(expected)
        else:
            got, wanted = str(y.dtype), str(x.dtype)
        name, distribution, label = self._culprit(module, x)
        raise KernelError.of(
            "KT590",
            f"{name} of {label} returned {got} for {self.plan.path}, not {wanted}",
            help=f"pip install --upgrade {distribution}, or name another kernel for this module",
        )

    def _culprit(self, module: nn.Module, x: torch.Tensor) -> tuple[str, str, str]:
        """The kernel that ran, else the operator: name, distribution, and that with its version."""
        found: Any = None
        chosen = self._kernel(module, x)
        if chosen is not None:
            found = self.registry.kernel(chosen.name)
        found = found or self.registry.operator(self.plan.operator)
        name = chosen.name if chosen is not None else self.plan.operator
        if found is None:
            return name, self.plan.distribution, self.plan.distribution
        return name, found.plugin.distribution, found.plugin.label

    def _kernel(self, module: nn.Module, x: torch.Tensor) -> KernelPlan | None:
        if not isinstance(module, PhasedOperator):
            return None
        tokens = x.numel() // max(1, x.shape[-1])
        return self.plan.decode if tokens <= module.decode_max_tokens else self.plan.prefill
