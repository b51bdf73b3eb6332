"""The kernel contract of the core, for both kernels, with and without group scales."""

from __future__ import annotations

import pytest

from kt_core.testing.kernels import kernel_cases

# One rounding of weights and two of activations to 1/127 of their row's largest value: for Gaussian
# values about 0.7 % each of the norm; the small sizes of the contract scatter around that.
LINEAR_TOLERANCE = 0.02
EXPERTS_TOLERANCE = 0.04

CASES = [
    *kernel_cases("kt_ops_amd_blis.linear_int8", tolerance=LINEAR_TOLERANCE),
    *kernel_cases("kt_ops_amd_blis.moe_int8", tolerance=EXPERTS_TOLERANCE),
]
GROUPED = [
    *kernel_cases(
        "kt_ops_amd_blis.linear_int8", tolerance=LINEAR_TOLERANCE, options={"group_size": 32}
    ),
    *kernel_cases(
        "kt_ops_amd_blis.moe_int8", tolerance=EXPERTS_TOLERANCE, options={"group_size": 32}
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel}-{case}")
def test_contract(case):
    case.run()


@pytest.mark.parametrize("case", GROUPED, ids=lambda case: f"{case.kernel}-{case}")
def test_contract_with_groups(case):
    case.run()
