"""Cases about phases: two kernels resident side by side, one token and many, capture in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kt_core.operators.experts import Experts
from kt_core.operators.kernel import ExpertsWeights, KernelContext
from kt_core.operators.linear import Linear
from kt_core.operators.operator import (
    ChosenKernel,
    ModuleWeights,
    OperatorContext,
    Phase,
    PhasedOperator,
)
from kt_core.operators.torch_experts import TorchExperts
from kt_core.operators.torch_linear import TorchLinear
from kt_core.testing.cases import require
from kt_core.testing.graphs import captured
from kt_core.weights import PackedTensor

if TYPE_CHECKING:
    from kt_core.testing.kernels import ExpertsSuite, LinearSuite

Cases = Iterator[tuple[str, Callable[[], None]]]


def linear_phases(suite: LinearSuite) -> Cases:
    """Cases for a kernel of ``kt_core.Linear``."""
    stored, dtype = suite.types[0], torch.float32

    def two_instances() -> None:
        kernel, weight = suite.build(stored, 48, dtype)
        x = suite.random(3, weight.shape[1])
        before = kernel.forward(x).clone()
        other, _ = suite.build(stored, 17, dtype)
        other.forward(suite.random(7, weight.shape[1]))
        require(torch.equal(before, kernel.forward(x)), "a second instance changes the first")

    def phases_agree() -> None:
        kernel, weight = suite.build(stored, 48, dtype)
        x = suite.random(5, weight.shape[1])
        rows = torch.cat([kernel.forward(row[None]) for row in x])
        suite.near(rows, kernel.forward(x), dtype, times=2)

    def in_one_phase(phase: Phase) -> None:
        packed, weight = suite.weight(stored, 48)
        original = nn.Linear(weight.shape[1], 48, bias=False, device="meta")
        operator = _loaded(Linear, TorchLinear, suite, original, phase, None, packed=packed)
        for tokens in (1, 6):
            x = suite.random(1, tokens, weight.shape[1])
            suite.near(operator(x), x @ weight.T, dtype)

    def graph() -> None:
        kernel, weight = suite.build(stored, 48, torch.bfloat16)
        x = suite.random(1, weight.shape[1], dtype=torch.bfloat16)
        captured(lambda: kernel.forward(x))

    yield "two-instances", two_instances
    yield "phases-agree", phases_agree
    for phase in Phase:
        yield f"only-in-{phase}", lambda phase=phase: in_one_phase(phase)  # type: ignore[misc]
    if suite.device.type == "cuda" and suite.target.graph_safe:
        yield "cuda-graph", graph


def experts_phases(suite: ExpertsSuite) -> Cases:
    """Cases for a kernel of ``kt_core.Experts``."""
    dtype = torch.float32

    def two_instances() -> None:
        kernel, _ = suite.build(dtype)
        inputs = suite.inputs(3)
        before = kernel.forward(*inputs).clone()
        other, _ = suite.build(dtype)
        other.forward(*suite.inputs(7))
        require(torch.equal(before, kernel.forward(*inputs)), "a second instance changes the first")

    def phases_agree() -> None:
        kernel, _ = suite.build(dtype)
        x, index, share = suite.inputs(5)
        each = [slice(i, i + 1) for i in range(5)]
        rows = torch.cat([kernel.forward(x[i], index[i], share[i]) for i in each])
        suite.near(rows, kernel.forward(x, index, share), dtype, times=2)

    def in_one_phase(phase: Phase) -> None:
        shape, weights = suite.shape, suite.weights()
        original = nn.Module()
        original.down_proj = nn.Parameter(
            torch.empty(
                shape.num_experts, shape.hidden_size, shape.intermediate_size, device="meta"
            )
        )
        config = SimpleNamespace(
            model_type="contract",
            hidden_act="silu",
            hidden_size=shape.hidden_size,
            num_experts=shape.num_experts,
            num_experts_per_tok=shape.top_k,
        )
        operator = _loaded(Experts, TorchExperts, suite, original, phase, config, experts=weights)
        for tokens in (1, 6):
            inputs = suite.inputs(tokens)
            suite.near(operator(*inputs), suite.oracle(weights, *inputs), dtype)

    def graph() -> None:
        kernel, _ = suite.build(torch.bfloat16)
        inputs = suite.inputs(1, torch.bfloat16)
        captured(lambda: kernel.forward(*inputs))

    yield "two-instances", two_instances
    yield "phases-agree", phases_agree
    for phase in Phase:
        yield f"only-in-{phase}", lambda phase=phase: in_one_phase(phase)  # type: ignore[misc]
    if suite.device.type == "cuda" and suite.target.graph_safe:
        yield "cuda-graph", graph


class _Given(ModuleWeights):
    """Weights that a test has at hand."""

    def __init__(self, packed: PackedTensor | None, experts: ExpertsWeights | None) -> None:
        self._packed, self._experts = packed, experts

    def packed(self, parameter: str) -> PackedTensor | None:
        return self._packed if parameter == "weight" else None

    def experts(self) -> ExpertsWeights:
        if self._experts is None:
            raise LookupError("no experts")
        return self._experts


def _loaded(
    operator: type[PhasedOperator],
    torch_kernel: type[Any],
    suite: Any,
    original: nn.Module,
    phase: Phase,
    config: Any,
    *,
    packed: PackedTensor | None = None,
    experts: ExpertsWeights | None = None,
) -> PhasedOperator:
    """The operator with the kernel under test in ``phase`` and torch's in the other."""
    kernels = {}
    for each in Phase:
        target, options = (suite.target, suite.options) if each is phase else (torch_kernel, {})
        inner = KernelContext("contract", torch.float32, suite.device, options)
        kernels[each] = ChosenKernel(f"contract.{target.__name__}", target, inner)
    context = OperatorContext("contract", config, torch.float32, suite.device, None, {}, kernels)
    built = operator(original, context)
    built.load(_Given(packed, experts))
    return built
