"""The experts kernel: routing, activations, mixed types, biases, threads and nodes."""

from __future__ import annotations

import pytest
import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.testing.packed import random_packed

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.experts import CpuExperts
from kt_ops_cpu.library import native, set_variant, variant, variant_names
from kt_ops_cpu.pool import set_threads

from kt_ops_cpu import reference

VARIANTS = variant_names(native())

SILU = Activation()

TYPICAL_ERROR = 0.05
"""Three products with 8-bit activations each, relative to the norm of the result."""

ROUNDING_ERROR = 4e-3
"""What is left when the oracle rounds activations as the kernels do: sums in float32 that tip a few
roundings between the products the other way, and with AMX the weights' own rounding."""


def make_weights(types, experts=6, hidden=256, inner=512, bias=False):
    gate, up, down = types
    generator = torch.Generator().manual_seed(7)

    def values(width):
        return torch.randn(experts, width, generator=generator) if bias else None

    return ExpertsWeights(
        [random_packed(gate, (inner, hidden), 3 * e, 0.06) for e in range(experts)],
        [random_packed(up, (inner, hidden), 3 * e + 1, 0.06) for e in range(experts)],
        [random_packed(down, (hidden, inner), 3 * e + 2, 0.06) for e in range(experts)],
        values(inner),
        values(inner),
        values(hidden),
    )


def build(weights, activation=SILU, dtype=torch.float32):
    inner, hidden = weights.gate[0].shape
    shape = ExpertsShape(len(weights.gate), hidden, inner, 2)
    context = KernelContext("experts", dtype, torch.device("cpu"), {})
    kernel = CpuExperts(shape, activation, context)
    kernel.load(weights)
    return kernel


def make_call(tokens, hidden=256, experts=6, k=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=generator)
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :k]
    return x, ids, torch.rand(tokens, k, generator=generator)


def relative_error(y, wanted):
    return ((y.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "types",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("Q4_K", "Q6_K", "Q8_0"),
        ("Q8_0", "Q5_K", "IQ4_XS"),
        ("BF16", "Q4_0", "F16"),
        ("MXFP4", "MXFP4", "MXFP4"),
        ("IQ2_XXS", "IQ3_S", "Q4_1"),
    ],
    ids="-".join,
)
def test_agrees_with_reference(types, name, restore_variant):
    set_variant(name)
    weights = make_weights(types)
    kernel = build(weights)
    for tokens in (1, 7, 60):
        x, ids, scores = make_call(tokens)
        y = kernel.forward(x, ids, scores)
        wanted = reference.experts(x, ids, scores, weights, kernel.activation)
        assert relative_error(y, wanted) < TYPICAL_ERROR
        rounded = reference.experts(
            x, ids, scores, weights, kernel.activation, reference.rounded_linear
        )
        assert relative_error(y, rounded) < ROUNDING_ERROR


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "swiglu_oai", "relu"])
def test_activations_with_biases(kind, name, restore_variant):
    """Plain weights, so that nothing but the activation and the biases can be off."""
    set_variant(name)
    weights = make_weights(("F32", "F32", "F32"), hidden=64, inner=96, bias=True)
    kernel = build(weights, Activation(kind))
    x, ids, scores = make_call(9, hidden=64)
    x[0] *= 30  # both tails of the activation
    wanted = reference.experts(x, ids, scores, weights, kernel.activation)
    assert relative_error(kernel.forward(x, ids, scores), wanted) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_activations(dtype):
    weights = make_weights(("Q4_K", "Q4_K", "Q6_K"))
    kernel = build(weights, dtype=dtype)
    x, ids, scores = make_call(12)
    x = x.to(dtype)
    y = kernel.forward(x, ids, scores.to(dtype))
    assert y.dtype is dtype
    wanted = reference.experts(x, ids, scores.to(dtype), weights, kernel.activation)
    assert relative_error(y, wanted) < TYPICAL_ERROR


def test_minus_one_adds_nothing():
    weights = make_weights(("Q4_K", "Q4_K", "Q6_K"))
    kernel = build(weights)
    x, ids, scores = make_call(8)
    ids[1, 0] = -1
    ids[2] = -1
    y = kernel.forward(x, ids, scores)
    wanted = reference.experts(x, ids, scores, weights, kernel.activation)
    assert relative_error(y, wanted) < TYPICAL_ERROR
    assert torch.equal(y[2], torch.zeros(256))
    assert torch.equal(kernel.forward(x, torch.full_like(ids, -1), scores), torch.zeros_like(x))


@pytest.mark.parametrize("wrong", [6, 2**31, -2, -(2**63)])
def test_ids_out_of_range_are_errors(wrong):
    kernel = build(make_weights(("Q4_K", "Q4_K", "Q6_K")))
    x, ids, scores = make_call(3)
    ids[1, 1] = wrong
    with pytest.raises(KernelError, match=f"id {wrong}; there are 6 experts") as caught:
        kernel.forward(x, ids, scores)
    assert caught.value.code == "KT503"


def test_no_tokens_and_no_choices():
    kernel = build(make_weights(("Q4_K", "Q4_K", "Q6_K")))
    x, ids, scores = make_call(3)
    assert kernel.forward(x[:0], ids[:0], scores[:0]).shape == (0, 256)
    assert torch.equal(kernel.forward(x, ids[:, :0], scores[:, :0]), torch.zeros_like(x))


def test_all_tokens_on_one_expert_and_repeated_choices():
    weights = make_weights(("Q4_K", "Q4_K", "Q6_K"))
    kernel = build(weights)
    x, ids, scores = make_call(300)
    ids[:] = 4
    wanted = reference.experts(x, ids, scores, weights, kernel.activation)
    assert relative_error(kernel.forward(x, ids, scores), wanted) < TYPICAL_ERROR


@pytest.mark.parametrize("types", [("Q4_K", "Q4_K", "Q6_K"), ("F32", "Q8_0", "BF16")], ids="-".join)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_rows_stay_their_own(bad, types):
    kernel = build(make_weights(types))
    x, ids, scores = make_call(9)
    clean = kernel.forward(x, ids, scores)
    x[4, 100] = bad
    y = kernel.forward(x, ids, scores)
    others = torch.arange(9) != 4
    assert torch.equal(y[others], clean[others])
    assert not torch.isfinite(y[4]).all()


def test_result_does_not_depend_on_threads(restore_threads):
    kernel = build(make_weights(("Q4_K", "Q4_K", "Q6_K")))
    for tokens in (1, 33):
        x, ids, scores = make_call(tokens)
        results = []
        for threads in (1, 2, 3, 8):
            set_threads(threads)
            results.append(kernel.forward(x, ids, scores))
        assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("inner", [768, 256, 96])
def test_result_does_not_depend_on_nodes(inner, restore_threads, monkeypatch):
    """768 wide experts over 1 to 4 nodes: the parts of a sum are added in another order, no more."""
    types = ("Q4_K", "Q4_K", "Q6_K") if inner % 256 == 0 else ("Q8_0", "Q8_0", "Q8_0")
    kernel = build(make_weights(types, inner=inner))
    x, ids, scores = make_call(33)
    monkeypatch.setenv("KT_CPU_TOPOLOGY", "0")
    set_threads(4)
    single = kernel.forward(x, ids, scores)
    for topology in ("0;0", "0;0;0", "0;0;0;0"):
        monkeypatch.setenv("KT_CPU_TOPOLOGY", topology)
        set_threads(4)
        error = relative_error(kernel.forward(x, ids, scores), single.double())
        assert error < 1e-6


def test_rows_may_be_strided():
    kernel = build(make_weights(("Q4_K", "Q4_K", "Q6_K")))
    x, ids, scores = make_call(5)
    wide = torch.zeros(5, 600)
    wide[:, :256] = x
    y = kernel.forward(x, ids, scores)
    assert torch.equal(kernel.forward(wide[:, :256], ids, scores), y)
    assert torch.equal(kernel.forward(x.T.contiguous().T, ids.T.contiguous().T, scores), y)
    same = kernel.forward(x[:1].expand(5, -1), ids[:1].expand(5, -1), scores[:1].expand(5, -1))
    assert torch.equal(same, same[:1].expand(5, -1))


def test_more_tokens_than_one_pass_holds(monkeypatch):
    """Passes are independent: but for float32 sums in another order, nothing changes.

    AMX takes many tokens of an expert with its tiles, for which it rounds the weights to 15 bits, and a
    few without; where a pass ends decides which way a token goes.
    """
    kernel = build(make_weights(("Q4_K", "Q4_K", "Q6_K")))
    x, ids, scores = make_call(2500)
    y = kernel.forward(x, ids, scores)
    monkeypatch.setattr("kt_ops_cpu.experts.TOKENS_PER_CALL", 700)
    most = 1e-4 if variant() == "amx" else 1e-5
    assert relative_error(kernel.forward(x, ids, scores), y.double()) < most
