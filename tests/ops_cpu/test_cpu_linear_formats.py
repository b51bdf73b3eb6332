"""Every stored type, in every variant, against gguf's dequantisation and a float64 product."""

from __future__ import annotations

import pytest
import torch

from kt_core.operators.kernel import KernelContext, LinearShape
from kt_core.weights import LAYOUTS

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.formats import FORMATS
from kt_ops_cpu.library import native, set_variant, variant_names
from kt_ops_cpu.linear import CpuLinear

from kt_ops_cpu import reference

PLAIN = {"F32", "F16", "BF16"}
K_QUANTS = {quant for quant in FORMATS if LAYOUTS[quant].block_size == 256}
VARIANTS = variant_names(native())

# Decode and prefill sizes that leave every remainder of the kernels' tiles of 4 and 6 tokens.
TOKENS = (1, 2, 3, 4, 5, 6, 7, 9, 13, 33)

FLOAT_ERROR = 2e-6
"""Rounding of float32 sums of a few thousand terms, relative to the sum of their magnitudes."""

BF16_ERROR = 2.0**-8
"""BF16 weights meet activations rounded to bfloat16, each off by at most 2**-9 of itself."""

STEP_ERROR = 6e-3
"""With AMX the K-quants' weights are rounded to a step per row and 256 values: at most this share of
the largest magnitude among them (Q2_K, the coarsest; a tenth of it for the others)."""


def build(weight, dtype=torch.float32, bias=None, options=None):
    rows, cols = weight.shape
    context = KernelContext("layer", dtype, torch.device("cpu"), options or {})
    kernel = CpuLinear(LinearShape(cols, rows), context)
    kernel.load(weight, bias)
    return kernel


def bound(x, weight, name):
    """The largest error that the stated roundings can cause, per output of variant ``name``.

    Rounding a block of ``x`` to 8 bits moves a value by at most half a step of amax / 127.
    """
    magnitude = reference.dequantize(weight).double().abs()
    x = x.double()
    share = FLOAT_ERROR + (BF16_ERROR if weight.type == "BF16" else 0)
    other = share * (x.abs() @ magnitude.T) + 1e-30
    if weight.type in PLAIN:
        return other
    block = 32 if LAYOUTS[weight.type].block_size == 32 else 256
    if name == "amx" and weight.type in K_QUANTS:
        most = magnitude.unflatten(1, (-1, 256)).amax(2)
        other = other + STEP_ERROR * x.abs().unflatten(1, (-1, 256)).sum(2) @ most.T
    steps = torch.nn.functional.pad(x, (0, -x.shape[1] % block)).unflatten(1, (-1, block))
    half_step = steps.abs().amax(2) / 254 * (1 + 1e-4)
    padded = torch.nn.functional.pad(magnitude, (0, -x.shape[1] % block)).unflatten(1, (-1, block))
    return torch.einsum("tb,nb->tn", half_step, padded.sum(2)) + other


def columns(type):
    if type in PLAIN:
        return (1, 31, 33, 300, 512)
    return (32, 96, 320) if LAYOUTS[type].block_size == 32 else (256, 768)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("type", FORMATS, ids=str)
def test_agrees_with_dequantised_product(type, name, random_packed, restore_variant):
    set_variant(name)
    generator = torch.Generator().manual_seed(1)
    for cols in columns(type):
        weight = random_packed(type, 37, cols)
        kernel = build(weight)
        for tokens in TOKENS:
            x = torch.randn(tokens, cols, generator=generator)
            wanted = reference.linear(x, weight, None)
            error = (kernel.forward(x).double() - wanted).abs()
            assert (error <= bound(x, weight, name)).all(), (cols, tokens)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("type", FORMATS, ids=str)
def test_typical_error_is_small(type, name, random_packed, restore_variant):
    """8-bit activations cost well under 1 % on random data; a wrong scale somewhere costs more."""
    set_variant(name)
    cols = 512
    weight = random_packed(type, 64, cols)
    x = torch.randn(32, cols, generator=torch.Generator().manual_seed(2))
    wanted = reference.linear(x, weight, None)
    error = (build(weight).forward(x).double() - wanted).norm() / wanted.norm()
    assert error < (0.003 if type == "BF16" else 1e-5 if type in PLAIN else 0.012)


@pytest.mark.parametrize("type", FORMATS, ids=str)
def test_native_unpacking_equals_gguf(type, random_packed):
    """The reference of the formats, block by block: equal to the last bit but for one product."""
    import numpy as np
    from kt_ops_cpu.matrices import matrix

    weight = random_packed(type, 5, 512)
    out = np.empty(weight.shape, np.float32)
    module = native()
    status = module.lib.kt_cpu_dequantize(
        matrix(weight, weight.shape, "w"), module.ffi.cast("float *", out.ctypes.data)
    )
    assert status == 0
    torch.testing.assert_close(
        torch.from_numpy(out), reference.dequantize(weight), rtol=3e-7, atol=1e-9
    )


@pytest.mark.parametrize("type", FORMATS, ids=str)
def test_variants_compute_the_same(type, random_packed, restore_variant):
    """Variants share the rounding of the activations, so they differ by float32 sums alone.

    Eleven tokens are too few for AMX, whose own rounding the tests above allow for.
    """
    weight = random_packed(type, 50, 768)
    x = torch.randn(11, 768, generator=torch.Generator().manual_seed(3))
    results = []
    for name in VARIANTS:
        set_variant(name)
        results.append(build(weight).forward(x).double())
    scale = reference.dequantize(weight).double().abs() @ x.double().abs().T
    for other in results[1:]:
        assert ((other - results[0]).abs() <= FLOAT_ERROR * scale.T).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_activation_dtypes(name, dtype, random_packed, restore_variant):
    set_variant(name)
    weight = random_packed("Q4_K", 33, 512)
    bias = torch.randn(33, generator=torch.Generator().manual_seed(4))
    x = torch.randn(2, 3, 512, generator=torch.Generator().manual_seed(5)).to(dtype)
    y = build(weight, dtype, bias).forward(x)
    assert y.dtype is dtype
    assert y.shape == (2, 3, 33)
    flat = x.reshape(6, 512)
    wanted = reference.linear(flat, weight, bias)
    allowed = bound(flat, weight, name) + wanted.abs() * torch.finfo(dtype).eps
    assert ((y.reshape(6, 33).double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_value_survives(name, dtype, random_packed, restore_variant):
    """Through an identity in F32, every 16-bit value comes out as it went in, NaNs as NaNs."""
    import numpy as np

    from kt_core.weights import PackedTensor, QuantType

    set_variant(name)
    eye = np.eye(4, dtype=np.float32).view(np.uint8)
    kernel = build(PackedTensor("eye", (4, 4), QuantType.F32, eye), dtype)
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    x = torch.zeros(65536, 4, dtype=dtype)
    x[:, 2] = every
    y = kernel.forward(x)
    finite = torch.isfinite(every)
    assert torch.equal(y[finite, 2], every[finite])
    assert torch.equal(torch.isnan(y[:, 2]), torch.isnan(every))
    assert torch.equal(y[torch.isinf(every), 2], every[torch.isinf(every)])
