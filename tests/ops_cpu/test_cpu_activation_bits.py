"""``activation_bits: 16``: the second term takes rounding down to what 16 bits allow."""

from __future__ import annotations

import pytest
import torch

from kt_core.operators.kernel import (
    Activation,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
    LinearShape,
)
from kt_core.registry.registry import default_registry
from kt_core.testing.kernels import kernel_cases, relative_error
from kt_core.testing.packed import random_packed

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.experts import CpuExperts
from kt_ops_cpu.formats import FORMATS as SERVED
from kt_ops_cpu.library import native, set_variant, variant_names
from kt_ops_cpu.linear import CpuLinear

from kt_ops_cpu import reference

# Two terms of 8 bits hold a value to 1/64516 of the largest in its block. On normal values that is
# 3e-5 of the result; one outlier of 30 in a block of 256 makes it ten times as much.
TOLERANCE = 3e-4

# Sums in float32, and a few roundings of the second term tipped the other way.
ROUNDING = 2e-5

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "F16")


@pytest.mark.parametrize(
    "case",
    kernel_cases(
        "kt_ops_cpu.linear", tolerance=TOLERANCE, formats=FORMATS, options={"activation_bits": 16}
    ),
    ids=str,
)
def test_contract_in_sixteen_bits(case):
    case.run()


@pytest.mark.parametrize("stored", ["Q4_1", "Q4_K"])
@pytest.mark.parametrize("tokens", [1, 3, 130, 1100])
def test_sixteen_bits_are_far_closer_than_eight(stored, tokens):
    target = default_registry().load_target(default_registry().kernel("kt_ops_cpu.linear").spec)
    weight = random_packed(stored, (80, 1024))
    x = torch.randn(tokens, 1024, generator=torch.Generator().manual_seed(tokens))
    x[:, 3] *= 30
    expected = x @ torch.from_numpy(weight.dequantize().copy()).T
    errors = {}
    for bits in (8, 16):
        context = KernelContext(
            "bits", torch.float32, torch.device("cpu"), {"activation_bits": bits}
        )
        kernel = target(LinearShape(1024, 80), context)
        kernel.load(weight, None)
        errors[bits] = relative_error(kernel.forward(x), expected)
    assert errors[16] < errors[8] / 50


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "Q8_0", "Q4_K"])
def test_experts_keep_the_contract_in_sixteen_bits(stored):
    cases = kernel_cases(
        "kt_ops_cpu.experts", tolerance=TOLERANCE, formats=[stored], options={"activation_bits": 16}
    )
    assert cases
    for case in cases:
        case.run()


def experts(types, bits, hidden=256, inner=512, count=5):
    gate, up, down = types
    weights = ExpertsWeights(
        [random_packed(gate, (inner, hidden), 3 * e) for e in range(count)],
        [random_packed(up, (inner, hidden), 3 * e + 1) for e in range(count)],
        [random_packed(down, (hidden, inner), 3 * e + 2) for e in range(count)],
    )
    context = KernelContext("bits", torch.float32, torch.device("cpu"), {"activation_bits": bits})
    kernel = CpuExperts(ExpertsShape(count, hidden, inner, 2), Activation(), context)
    kernel.load(weights)
    return kernel, weights


def call(tokens, hidden=256, count=5):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=generator)
    x[:, 3] *= 30
    ids = torch.rand(tokens, count, generator=generator).argsort(1)[:, :2]
    return x, ids, torch.rand(tokens, 2, generator=generator)


@pytest.mark.parametrize("name", variant_names(native()))
@pytest.mark.parametrize("stored", SERVED, ids=str)
def test_experts_in_sixteen_bits(stored, name, restore_variant):
    """Every format in every variant, few tokens and many: as the oracle that rounds alike, and as none."""
    set_variant(name)
    kernel, weights = experts((stored,) * 3, 16)
    for tokens in (1, 2, 60):
        x, ids, scores = call(tokens)
        y = kernel.forward(x, ids, scores)
        exact = reference.experts(x, ids, scores, weights, kernel.activation)
        assert relative_error(y, exact.float()) < TOLERANCE

        def product(x, weight, bias):
            return reference.rounded_linear(x, weight, bias, 16)

        alike = reference.experts(x, ids, scores, weights, kernel.activation, product)
        assert relative_error(y, alike.float()) < ROUNDING


@pytest.mark.parametrize(
    "types", [("Q4_K", "Q4_K", "Q6_K"), ("BF16", "Q8_0", "Q4_0")], ids="-".join
)
def test_experts_in_sixteen_bits_are_far_closer_than_in_eight(types):
    """Also with one layout for gate and another for up, and with more tokens than a strip takes."""
    kernels = {bits: experts(types, bits) for bits in (8, 16)}
    for tokens in (1, 700):
        x, ids, scores = call(tokens)
        weights = kernels[8][1]
        exact = reference.experts(x, ids, scores, weights, Activation()).float()
        errors = {
            bits: relative_error(kernel.forward(x, ids, scores), exact)
            for bits, (kernel, _) in kernels.items()
        }
        assert errors[16] < errors[8] / 50


def test_rows_that_are_not_finite_stay_their_own_in_sixteen_bits():
    kernel, _ = experts(("Q4_K", "BF16", "Q6_K"), 16)
    x, ids, scores = call(9)
    clean = kernel.forward(x, ids, scores)
    for bad in (float("nan"), float("inf"), 1e38):
        x[4, 100] = bad
        y = kernel.forward(x, ids, scores)
        others = torch.arange(9) != 4
        assert torch.equal(y[others], clean[others])
        assert not torch.equal(y[4], clean[4])


@pytest.mark.parametrize("bits", [4, "16", 12.0, None])
def test_other_numbers_of_bits_are_refused(bits):
    from jsonschema import Draft202012Validator

    for name in ("kt_ops_cpu.linear", "kt_ops_cpu.experts"):
        validator = Draft202012Validator(default_registry().kernel(name).spec.options_schema)
        assert validator.is_valid({"activation_bits": 16})
        assert not validator.is_valid({"activation_bits": bits})


def test_calls_of_few_tokens_may_have_bits_of_their_own():
    """``decode_activation_bits`` holds up to four tokens, ``activation_bits`` beyond them."""
    weight = random_packed("Q4_K", (80, 1024))
    x = torch.randn(5, 1024, generator=torch.Generator().manual_seed(5))

    def outputs(**options):
        context = KernelContext("bits", torch.float32, torch.device("cpu"), options)
        kernel = CpuLinear(LinearShape(1024, 80), context)
        kernel.load(weight, None)
        return [kernel.forward(x[:tokens]) for tokens in (1, 4, 5)]

    eight, sixteen = outputs(), outputs(activation_bits=16)
    few = outputs(decode_activation_bits=16)
    assert not any(torch.equal(*pair) for pair in zip(eight, sixteen, strict=True))
    assert all(torch.equal(*pair) for pair in zip(few, [*sixteen[:2], eight[2]], strict=True))
    less = outputs(activation_bits=16, decode_activation_bits=8)
    assert all(torch.equal(*pair) for pair in zip(less, [*eight[:2], sixteen[2]], strict=True))
