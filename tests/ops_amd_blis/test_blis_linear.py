"""The linear kernel against exact arithmetic; what the contract does not ask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kt_ops_amd_blis.linear import LinearInt8

from kt_core.errors import KernelError
from kt_core.operators.kernel import KernelContext, LinearShape
from kt_core.weights import PackedTensor, QuantType
from kt_ops_amd_blis import reference

pytestmark = pytest.mark.usefixtures("blis")

# Integer sums are exact on both sides; what is left are float32 products of scales and sums.
BOUND = 2e-6


def linear(out, inner, bias=None, **options):
    weight = np.random.default_rng(out).standard_normal((out, inner)).astype(np.float32)
    context = KernelContext("q_proj", torch.float32, torch.device("cpu"), options)
    kernel = LinearInt8(LinearShape(inner, out), context)
    kernel.load(PackedTensor("q", weight.shape, QuantType.F32, weight.view(np.uint8)), bias)
    return kernel, weight


@pytest.mark.parametrize("group", [0, 32, 64])
@pytest.mark.parametrize(("out", "inner"), [(1, 1), (48, 33), (65, 64), (200, 320), (1000, 576)])
def test_equals_reference(out, inner, group):
    kernel, weight = linear(out, inner, group_size=group)
    for tokens in (1, 2, 129, 300):
        x = np.random.default_rng(tokens).standard_normal((tokens, inner)).astype(np.float32)
        quantized = (reference.quantize(m, group) for m in (x, weight))
        (xq, xs), (wq, ws) = quantized
        expected = reference.multiply(xq, xs, wq, ws, group)
        actual = kernel.forward(torch.from_numpy(x)).numpy()
        assert np.linalg.norm(actual - expected) <= BOUND * np.linalg.norm(expected)


def test_bias_is_added_once_per_column():
    bias = torch.arange(70, dtype=torch.float32)
    with_bias, _ = linear(70, 64, bias)
    without, _ = linear(70, 64)
    x = torch.randn(5, 64)
    assert torch.equal(with_bias.forward(x), without.forward(x) + bias)


def test_more_rows_than_a_pass():
    kernel, _ = linear(64, 64)
    x = torch.randn(8192 + 5, 64)
    parts = torch.cat([kernel.forward(x[:8192]), kernel.forward(x[8192:])])
    assert torch.equal(kernel.forward(x), parts)


@pytest.mark.parametrize(
    "x", [torch.zeros(3, 63), torch.zeros(()), torch.zeros(3, 64, dtype=torch.float64)]
)
def test_wrong_input(x):
    kernel, _ = linear(48, 64)
    with pytest.raises(KernelError) as caught:
        kernel.forward(x)
    assert caught.value.code == "KT540"


def test_wrong_bias():
    with pytest.raises(KernelError) as caught:
        linear(48, 64, torch.zeros(47))
    assert caught.value.code == "KT540"
