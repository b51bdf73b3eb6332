"""The core's own kernels satisfy the contract that every distribution's must."""

from __future__ import annotations

import pytest

from kt_core.testing.kernels import kernel_cases

# float32 sums in another order than the reference's; nothing is quantised on the way.
TOLERANCE = 1e-5


@pytest.mark.parametrize("case", kernel_cases("kt_core.torch_linear", tolerance=TOLERANCE), ids=str)
def test_torch_linear(case):
    case.run()


@pytest.mark.parametrize(
    "case", kernel_cases("kt_core.torch_experts", tolerance=TOLERANCE), ids=str
)
def test_torch_experts(case):
    case.run()
