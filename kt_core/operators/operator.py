"""The contract of module operators: what takes a module's place in the model."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from kt_core.operators.kernel import ExpertsWeights, Kernel, KernelContext
from kt_core.weights import PackedTensor

if TYPE_CHECKING:
    from kt_core.errors import Problem
    from kt_core.plan.model import ModulePlan


class Phase(enum.StrEnum):
    """Prefill reads the prompt, many tokens at once; decode writes, one token at a time."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class ChosenKernel:
    """A kernel class and what to build it with."""

    name: str
    target: type[Kernel]
    context: KernelContext


@dataclass(frozen=True)
class OperatorContext:
    """What every operator is built with.

    ``device`` is where its own parameters live, ``out_device`` where results go (``None``: to the
    device the input came from). ``kernels`` has an entry per phase when the operator runs kernels;
    both may be the same object. ``streamed``: the prefill kernel is loaded for each prompt anew, when
    the prompt reaches the module's layer, and let go after it.
    """

    path: str
    config: Any
    dtype: torch.dtype
    device: torch.device
    out_device: torch.device | None
    kwargs: Mapping[str, Any]
    kernels: Mapping[Phase, ChosenKernel]
    streamed: bool = False


class ModuleWeights:
    """The weights one module takes, as the plan bound them. Implemented by the loader."""

    @abstractmethod
    def packed(self, parameter: str) -> PackedTensor | None:
        """The stored tensor behind ``parameter`` (``"weight"``), or ``None`` if there is none."""

    @abstractmethod
    def experts(self) -> ExpertsWeights:
        """The weights of the module's experts."""


class Operator(nn.Module):
    """Base of operators. Built around the meta module it replaces, then loaded once.

    A subclass whose spec has a ``kernel_kind`` also says, for the plan, which shape its kernels get.
    """

    keeps_shape: ClassVar[bool] = False
    """Whether results have the shape of the first argument, as those of norms, attention and MLPs."""

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__()
        self.context = context

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return the module that takes ``original``'s place."""
        return cls(original, context)

    @classmethod
    def check_plan(cls, module: ModulePlan, modules: Sequence[ModulePlan]) -> Sequence[Problem]:
        """Return what is wrong with ``module`` among all ``modules`` of the plan.

        Called at plan time, if the operator's spec says ``checks_plan``.
        """
        return ()

    @classmethod
    def kernel_shape(cls, original: nn.Module, config: Any) -> Any:
        """Return the shape object of this operator's kernel kind for ``original``."""
        raise NotImplementedError

    @classmethod
    def finish(cls, module: nn.Module, context: OperatorContext) -> None:
        """Called last, with what stands in the original's place in the loaded model."""

    @abstractmethod
    def load(self, weights: ModuleWeights) -> None:
        """Take the weights; afterwards nothing of the module is on meta."""


class PhasedOperator(Operator):
    """An operator that holds one kernel per phase and picks by the number of tokens in the call."""

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        self.decode_max_tokens = int(context.kwargs.get("decode_max_tokens", 1))
        self.kernels: dict[Phase, Kernel] = {}
        self._late: Callable[[], Kernel] | None = None
        self._give: Callable[[Any], None] | None = None

    def build_kernels(self, *args: Any) -> None:
        """Build the phases' kernels; the same choice in both phases becomes one instance."""
        built: dict[tuple[str, torch.device], Kernel] = {}
        for phase, chosen in self.context.kernels.items():
            if phase is Phase.PREFILL and self.context.streamed:
                self._late = partial(chosen.target, *args, chosen.context)  # type: ignore[call-arg]
                continue
            key = (chosen.name, chosen.context.device)
            if key not in built:
                built[key] = chosen.target(*args, chosen.context)  # type: ignore[call-arg]
            self.kernels[phase] = built[key]

    def unique_kernels(self) -> list[Any]:
        """Each kernel instance once."""
        return list({id(kernel): kernel for kernel in self.kernels.values()}.values())

    def load_kernels(self, give: Callable[[Any], None]) -> None:
        """Let ``give`` hand the weights to each kernel, now or when a prompt needs it."""
        for kernel in self.unique_kernels():
            give(kernel)
        if self._late is not None:
            self._give = give

    @contextmanager
    def prefill_kernel(self) -> Iterator[None]:
        """Hold the prefill kernel for a while, where it is not there all the time."""
        if self._late is None or self._give is None or Phase.PREFILL in self.kernels:
            yield
            return
        kernel = self._late()
        self._give(kernel)
        self.kernels[Phase.PREFILL] = kernel
        try:
            yield
        finally:
            del self.kernels[Phase.PREFILL]

    def kernel_for(self, tokens: int) -> Any:
        """The kernel that runs a call of ``tokens`` tokens."""
        if tokens > self.decode_max_tokens and Phase.PREFILL in self.kernels:
            return self.kernels[Phase.PREFILL]
        return self.kernels[Phase.DECODE]

    def extra_repr(self) -> str:
        """Show the kernels in ``print(model)``."""
        names = {phase: chosen.name for phase, chosen in self.context.kernels.items()}
        return ", ".join(f"{phase}={name}" for phase, name in names.items())
