"""The kernel satisfies kt's contract, equals its reference, and answers inside a model."""

from __future__ import annotations

import pytest
import torch
from kt_core.testing import check_kernel, check_model, random_packed, relative_error

# float32 sums in another order than the oracle's: a few units in the last place, 1e-7 each.
TOLERANCE = 1e-5


def test_contract():
    check_kernel("kt_plugin_template.linear", tolerance=TOLERANCE, device="@DEVICE@")


@pytest.mark.kt_kernel("kt_plugin_template.linear", "@DEVICE@")
def test_equals_the_reference():
    from kt_core.operators.kernel import KernelContext, LinearShape

    from kt_plugin_template.linear import Linear
    from kt_plugin_template.reference import linear

    weight, bias = random_packed("Q8_0", (48, 64)), torch.linspace(-1, 1, 48)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    device = torch.device("@DEVICE@")
    kernel = Linear(LinearShape(64, 48), KernelContext("test", torch.float32, device, {}))
    kernel.load(weight, bias)
    assert relative_error(kernel.forward(x.to(device)), linear(x, weight, bias)) < TOLERANCE


@pytest.mark.kt_kernel("kt_plugin_template.linear", "@DEVICE@")
def test_a_model_answers_as_before(kt_tiny_llama):
    file = kt_tiny_llama(quantization="Q8_0")
    uses = ["kt_plugin_template.linear"]
    check_model(file, "kt_plugin_template", uses=uses, tolerance=1e-4, device="@DEVICE@")
