"""The kernel contract of the core, on every stored type that the kernels read."""

from __future__ import annotations

from kt_core.testing import check_kernel

# Activations are rounded to 8 bits in blocks of 32 or 256: up to 1/254 of the block's largest value
# each, about 0.6 % of the norm for normal ones. Experts round twice, and the contract's random blocks of
# types with an offset have offsets many times their scales, so that products cancel and roundings weigh
# more.
LINEAR_TOLERANCE = 0.015
EXPERTS_TOLERANCE = 0.12


def test_linear():
    check_kernel("kt_ops_cpu.linear", tolerance=LINEAR_TOLERANCE)


def test_experts():
    check_kernel("kt_ops_cpu.experts", tolerance=EXPERTS_TOLERANCE)
