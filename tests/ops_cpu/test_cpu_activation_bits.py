"""``activation_bits: 16``: the second term takes rounding down to what 16 bits allow."""

from __future__ import annotations

import pytest
import torch

from kt_core.operators.kernel import KernelContext, LinearShape
from kt_core.registry.registry import default_registry
from kt_core.testing.kernels import kernel_cases, relative_error
from kt_core.testing.packed import random_packed

# Two terms of 8 bits hold a value to 1/64516 of the largest in its block. On normal values that is
# 3e-5 of the result; one outlier of 30 in a block of 256 makes it ten times as much.
TOLERANCE = 3e-4

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
