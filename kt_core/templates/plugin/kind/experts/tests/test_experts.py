"""The kernel satisfies kt's contract, equals its reference, and answers inside a model."""

from __future__ import annotations

import pytest
import torch
from kt_core.testing import check_kernel, check_model, random_packed, relative_error

# float32 sums in another order than the oracle's, three products deep.
TOLERANCE = 1e-5


def test_contract():
    check_kernel("kt_plugin_template.experts", tolerance=TOLERANCE, device="@DEVICE@")


@pytest.mark.kt_kernel("kt_plugin_template.experts", "@DEVICE@")
def test_equals_the_reference():
    from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext

    from kt_plugin_template.experts import Experts
    from kt_plugin_template.reference import experts

    inner, outer = (3, 64, 32), (3, 32, 64)
    stored = (
        random_packed("Q8_0", s, n, 0.1).unstack() for n, s in enumerate((inner, inner, outer))
    )
    weights = ExpertsWeights(*stored)
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([[0, 2], [1, 0], [2, -1], [-1, -1]])
    share = torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0], [0.0, 0.0]])
    device = torch.device("@DEVICE@")
    context = KernelContext("test", torch.float32, device, {})
    kernel = Experts(ExpertsShape(3, 32, 64, 2), Activation(), context)
    kernel.load(weights)
    y = kernel.forward(x.to(device), index.to(device), share.to(device))
    assert relative_error(y, experts(x, index, share, weights)) < TOLERANCE


@pytest.mark.kt_kernel("kt_plugin_template.experts", "@DEVICE@")
def test_a_model_answers_as_before(kt_tiny_moe):
    file = kt_tiny_moe(quantization="Q8_0")
    uses = ["kt_plugin_template.experts"]
    check_model(file, "kt_plugin_template", uses=uses, tolerance=1e-4, device="@DEVICE@")
