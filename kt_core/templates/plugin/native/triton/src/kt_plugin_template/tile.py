"""The Triton kernel. Imported by the first product, so that a plan can be made without Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def multiply(
    x,
    quants,
    scales,
    y,
    n,
    out,
    width,
    rows: tl.constexpr,
    columns: tl.constexpr,
    values: tl.constexpr,
):
    """Compute one tile of ``y``: blocks of weights are dequantised as they are read."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside, below = row[:, None] < n, column < out
    total = tl.zeros((rows, columns), dtype=tl.float32)
    for block in range(width // values):
        k = block * values + tl.arange(0, values)
        a = tl.load(x + row[:, None] * width + k[None, :], mask=inside, other=0.0)
        q = tl.load(quants + column[None, :] * width + k[:, None], mask=below[None, :], other=0)
        d = tl.load(scales + column * (width // values) + block, mask=below, other=0.0)
        product = tl.dot(a, q.to(tl.float32), input_precision="ieee")
        total += product * d.to(tl.float32)[None, :]
    tl.store(y + row[:, None] * out + column[None, :], total, mask=inside & below[None, :])
