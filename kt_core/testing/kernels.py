"""What every kernel must satisfy, as cases that an operator distribution runs.

All at once with :func:`kt_core.testing.check_kernel`, or one test for each::

@pytest.mark.parametrize("case", kernel_cases("my_package.linear", tolerance=0.01), ids=str)
def test_contract(case):
    case.run()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import (
    Activation,
    ExpertsKernel,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
    LinearKernel,
    LinearShape,
)
from kt_core.registry.registry import Registry, default_registry
from kt_core.registry.specs import EXPERTS, LINEAR, KernelSpec
from kt_core.testing.cases import Case, relative_error
from kt_core.testing.inputs import DTYPES, ROUNDING
from kt_core.testing.oracle import experts_oracle
from kt_core.testing.packed import random_packed
from kt_core.testing.phases import experts_phases, linear_phases
from kt_core.weights import DEQUANTIZABLE, LAYOUTS, PackedTensor, QuantType

__all__ = ["Case", "kernel_cases", "relative_error"]


def kernel_cases(
    name: str,
    *,
    tolerance: float,
    device: str = "cpu",
    formats: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
) -> list[Case]:
    """Return all cases for a registered kernel of kind ``linear`` or ``experts``.

    ``tolerance`` bounds ``norm(y - reference) / norm(reference)`` against float32 computation on
    dequantised weights; give the reason for it beside the test. ``formats`` defaults to what the
    spec accepts.
    """
    registry = registry or default_registry()
    found = registry.kernel(name)
    if found is None:
        raise LookupError(registry.unknown(name, "kernel").render())
    spec = found.spec
    suites: dict[str, type[_Suite]] = {LINEAR: LinearSuite, EXPERTS: ExpertsSuite}
    if spec.kind not in suites:
        raise LookupError(f"there is no contract for kernels of the kind {spec.kind!r}")
    types = [QuantType(t) for t in formats] if formats else _accepted(spec)
    suite = suites[spec.kind](registry.load_target(spec), types, tolerance, device, options or {})
    return [Case(spec.name, name, check) for name, check in suite.cases()]


def _accepted(spec: KernelSpec) -> list[QuantType]:
    if "*" not in spec.weight_formats:
        return [QuantType(name) for name in spec.weight_formats]
    plain = (QuantType.F32, QuantType.F16, QuantType.BF16)
    # One of each family is enough for a kernel that only ever sees dequantised values.
    return [*plain, QuantType.Q8_0, QuantType.Q4_K, QuantType.Q6_K]


class _Suite:
    def __init__(
        self,
        target: type[Any],
        types: Sequence[QuantType],
        tolerance: float,
        device: str,
        options: Mapping[str, Any],
    ) -> None:
        self.target = target
        self.types = [t for t in types if t in DEQUANTIZABLE]
        self.tolerance = tolerance
        self.device = torch.device(device)
        self.options = options

    def cases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        raise NotImplementedError

    def context(self, dtype: torch.dtype) -> KernelContext:
        return KernelContext("contract", dtype, self.device, self.options)

    def near(
        self,
        actual: torch.Tensor,
        expected: torch.Tensor,
        dtype: torch.dtype,
        times: int = 1,
    ) -> None:
        assert actual.shape == expected.shape, f"{list(actual.shape)}, not {list(expected.shape)}"
        limit = times * (self.tolerance + ROUNDING[dtype])
        error = relative_error(actual, expected)
        assert error <= limit, f"relative error {error:.2e} above {limit:.2e}"

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape) + 1)
        return torch.randn(*shape, generator=generator).to(self.device, dtype)


class LinearSuite(_Suite):
    """What a kernel of ``kt_core.Linear`` must satisfy."""

    def cases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for stored in self.types:
            yield f"format-{stored}", partial(self.agrees, stored, 3, torch.float32)
            yield f"format-{stored}-decode", partial(self.agrees, stored, 1, torch.float32)
        for dtype in DTYPES:
            yield (
                f"dtype-{dtype}".replace("torch.", ""),
                partial(self.agrees, self.types[0], 5, dtype),
            )
        for tokens in (0, 1, 2, 7, 33, 130):
            yield f"tokens-{tokens}", partial(self.agrees, self.types[-1], tokens, torch.float32)
        for rows in (1, 3, 17, 65):
            yield f"out-{rows}", partial(self.agrees, self.types[-1], 4, torch.float32, rows)
        yield "bias", self.bias
        yield "leading-dimensions", self.leading_dimensions
        yield "strided-input", self.strided_input
        yield "input-untouched", self.input_untouched
        yield "non-finite-row", self.non_finite_row
        yield "deterministic", self.deterministic
        yield "resident-bytes", self.resident_bytes
        yield from linear_phases(self)

    def build(
        self, type: QuantType, rows: int, dtype: torch.dtype, bias: torch.Tensor | None = None
    ) -> tuple[LinearKernel, torch.Tensor]:
        packed, weight = self.weight(type, rows)
        kernel: LinearKernel = self.target(LinearShape(weight.shape[1], rows), self.context(dtype))
        kernel.load(packed, bias)
        return kernel, weight

    def weight(self, type: QuantType, rows: int) -> tuple[PackedTensor, torch.Tensor]:
        """A stored matrix of ``rows`` and two blocks' columns, and its float32 values."""
        columns = 2 * max(32, LAYOUTS[type].block_size)
        packed = random_packed(type, (rows, columns), seed=rows)
        return packed, torch.from_numpy(packed.dequantize().copy()).to(self.device)

    def agrees(self, type: QuantType, tokens: int, dtype: torch.dtype, rows: int = 48) -> None:
        kernel, weight = self.build(type, rows, dtype)
        x = self.random(tokens, weight.shape[1], dtype=dtype)
        y = kernel.forward(x)
        assert y.shape == (tokens, rows)
        assert y.dtype == dtype
        assert y.device.type == self.device.type
        if tokens:
            self.near(y, x.float() @ weight.T, dtype)

    def bias(self) -> None:
        bias = torch.linspace(-1, 1, 48)
        kernel, weight = self.build(self.types[0], 48, torch.float32, bias)
        x = self.random(3, weight.shape[1])
        self.near(kernel.forward(x), x @ weight.T + bias.to(self.device), torch.float32)

    def leading_dimensions(self) -> None:
        kernel, weight = self.build(self.types[0], 48, torch.float32)
        x = self.random(2, 3, weight.shape[1])
        assert kernel.forward(x).shape == (2, 3, 48)
        flat = kernel.forward(x.reshape(6, -1))
        self.near(kernel.forward(x).reshape(6, 48), flat, torch.float32)

    def strided_input(self) -> None:
        kernel, weight = self.build(self.types[0], 48, torch.float32)
        wide = self.random(4, 2 * weight.shape[1])
        x = wide[:, ::2]
        self.near(kernel.forward(x), x @ weight.T, torch.float32)

    def input_untouched(self) -> None:
        kernel, weight = self.build(self.types[0], 48, torch.float32)
        x = self.random(4, weight.shape[1])
        before = x.clone()
        kernel.forward(x)
        assert torch.equal(x, before)

    def non_finite_row(self) -> None:
        kernel, weight = self.build(self.types[0], 48, torch.float32)
        x = self.random(5, weight.shape[1])
        x[2, 0] = float("nan")
        good = [0, 1, 3, 4]
        self.near(kernel.forward(x)[good], (x @ weight.T)[good], torch.float32)

    def deterministic(self) -> None:
        kernel, weight = self.build(self.types[0], 48, torch.bfloat16)
        x = self.random(9, weight.shape[1], dtype=torch.bfloat16)
        assert torch.equal(kernel.forward(x), kernel.forward(x))

    def resident_bytes(self) -> None:
        from kt_core.weights import TensorInfo

        info = TensorInfo("w", (48, 64), QuantType.F32, 0, 48 * 64 * 4)
        size = self.target.resident_bytes(LinearShape(64, 48), [info], self.context(torch.bfloat16))
        assert 0 < size <= 4 * info.nbytes


class _Oracle:
    """The plain loops of :func:`experts_oracle` on one layer's weights."""

    def __init__(self, weights: ExpertsWeights) -> None:
        self.weights = weights

    def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return experts_oracle(x, index, weights, self.weights)


class ExpertsSuite(_Suite):
    """What a kernel of ``kt_core.Experts`` must satisfy."""

    shape = ExpertsShape(num_experts=5, hidden_size=512, intermediate_size=256, top_k=2)

    def cases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for stored in self.types:
            yield f"format-{stored}", partial(self.agrees, 9, torch.float32, stored)
            yield f"format-{stored}-decode", partial(self.agrees, 1, torch.float32, stored)
        for dtype in DTYPES:
            yield f"dtype-{dtype}".replace("torch.", ""), partial(self.agrees, 6, dtype)
        for tokens in (0, 1, 2, 8, 33, 130):
            yield f"tokens-{tokens}", partial(self.agrees, tokens, torch.float32)
        yield "mixed-formats", self.mixed_formats
        yield "one-expert-takes-all", self.one_expert
        yield "minus-one-adds-nothing", self.minus_one
        for expert in (-2, 5, 2**31, -(2**63)):
            yield f"expert-{expert}-refused", partial(self.refused, expert)
        yield "usable-after-refusal", self.after_refusal
        yield "non-finite-row", self.non_finite_row
        yield "zero-row", self.zero_row
        yield "input-untouched", self.input_untouched
        yield from experts_phases(self)

    def build(
        self, dtype: torch.dtype, gate: QuantType | None = None, down: QuantType | None = None
    ) -> tuple[ExpertsKernel, _Oracle]:
        weights = self.weights(gate, down)
        kernel: ExpertsKernel = self.target(self.shape, Activation(), self.context(dtype))
        kernel.load(weights)
        return kernel, _Oracle(weights)

    def weights(
        self, gate: QuantType | None = None, down: QuantType | None = None
    ) -> ExpertsWeights:
        """Random weights of all experts, ``down`` perhaps of another stored type."""
        gate = gate or self.types[0]
        shape = self.shape
        inner = (shape.num_experts, shape.intermediate_size, shape.hidden_size)
        outer = (shape.num_experts, shape.hidden_size, shape.intermediate_size)
        return ExpertsWeights(
            random_packed(gate, inner, 1, 0.05).unstack(),
            random_packed(gate, inner, 2, 0.05).unstack(),
            random_packed(down or gate, outer, 3, 0.05).unstack(),
        )

    def oracle(self, weights: ExpertsWeights, *inputs: torch.Tensor) -> torch.Tensor:
        """What the layer must compute, by plain loops."""
        return _Oracle(weights).forward(*inputs)

    def inputs(
        self, tokens: int, dtype: torch.dtype = torch.float32
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(tokens)
        scores = torch.rand(tokens, self.shape.num_experts, generator=generator)
        weights, index = scores.topk(self.shape.top_k, dim=-1)
        x = self.random(tokens, self.shape.hidden_size, dtype=dtype)
        return x, index.to(self.device), weights.to(self.device, dtype)

    def compare(
        self,
        kernel: ExpertsKernel,
        reference: _Oracle,
        x: torch.Tensor,
        index: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        y = kernel.forward(x, index, weights)
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        if x.numel():
            self.near(y, reference.forward(x.float(), index, weights.float()), x.dtype)
        return y

    def agrees(self, tokens: int, dtype: torch.dtype, type: QuantType | None = None) -> None:
        kernel, reference = self.build(dtype, type)
        self.compare(kernel, reference, *self.inputs(tokens, dtype))

    def mixed_formats(self) -> None:
        kernel, reference = self.build(torch.float32, self.types[0], self.types[-1])
        self.compare(kernel, reference, *self.inputs(6))

    def one_expert(self) -> None:
        kernel, reference = self.build(torch.float32)
        x, index, weights = self.inputs(40)
        index[:] = 3
        self.compare(kernel, reference, x, index, weights)

    def minus_one(self) -> None:
        kernel, reference = self.build(torch.float32)
        x, index, weights = self.inputs(6)
        index[1, 0] = index[3, :] = -1
        y = self.compare(kernel, reference, x, index, weights)
        assert torch.equal(y[3], torch.zeros_like(y[3]))

    def refused(self, expert: int) -> None:
        kernel, _ = self.build(torch.float32)
        x, index, weights = self.inputs(4)
        index[2, 1] = expert
        with pytest.raises(KernelError, match="KT5"):
            kernel.forward(x, index, weights)

    def after_refusal(self) -> None:
        kernel, reference = self.build(torch.float32)
        x, index, weights = self.inputs(4)
        wrong = index.clone()
        wrong[0, 0] = self.shape.num_experts
        with pytest.raises(KernelError):
            kernel.forward(x, wrong, weights)
        self.compare(kernel, reference, x, index, weights)

    def non_finite_row(self) -> None:
        kernel, reference = self.build(torch.float32)
        x, index, weights = self.inputs(9)
        x[4, 7] = float("inf")
        good = [row for row in range(9) if row != 4]
        y = kernel.forward(x, index, weights)
        self.near(y[good], reference.forward(x, index, weights)[good], torch.float32)

    def zero_row(self) -> None:
        kernel, _ = self.build(torch.float32)
        x, index, weights = self.inputs(5)
        x[2] = 0
        assert torch.equal(kernel.forward(x, index, weights)[2], torch.zeros_like(x[2]))

    def input_untouched(self) -> None:
        kernel, _ = self.build(torch.float32)
        inputs = self.inputs(5)
        before = [tensor.clone() for tensor in inputs]
        kernel.forward(*inputs)
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
