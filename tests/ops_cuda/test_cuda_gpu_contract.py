"""The kernel contract of the core, for all four kernels."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kt_ops_cuda.plugin import EXACT

from kt_core.testing.kernels import kernel_cases

pytestmark = pytest.mark.gpu

# float32 activations are rounded to bfloat16 (2^-9 each, about 1.7e-3 of the norm) and so are results.
LINEAR_TOLERANCE = 0.006
# Once more after the activation and for each expert's row. The contract's random Q4_1 blocks have
# offsets many times their scales, so that products cancel and roundings weigh more.
EXPERTS_TOLERANCE = 0.04
# 4 bits with a scale for 32 to 128 Gaussian values: about 9 % of the norm, up to 15 % for one row.
QUANTISED_TOLERANCE = 0.2


def _cases():
    for name, tolerance in (
        ("marlin", LINEAR_TOLERANCE),
        ("gguf_linear", LINEAR_TOLERANCE),
        ("experts", EXPERTS_TOLERANCE),
        ("gguf_experts", EXPERTS_TOLERANCE),
    ):
        yield from kernel_cases(
            f"kt_ops_cuda.{name}", tolerance=tolerance, device="cuda", formats=EXACT
        )
    yield from kernel_cases(
        "kt_ops_cuda.marlin",
        tolerance=QUANTISED_TOLERANCE,
        device="cuda",
        formats=("F32", "F16", "BF16"),
    )


@pytest.mark.parametrize("case", list(_cases()), ids=lambda case: f"{case.kernel}-{case}")
def test_contract(case):
    case.run()
