"""The experts kernels on a GPU against a plain float64 loop, few tokens and many."""

from __future__ import annotations

import pytest
import torch
from kt_ops_cuda.experts import GgufExperts, MarlinExperts

from kt_core.errors import KernelError
from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.operators.torch_experts import TorchExperts
from kt_core.testing.packed import random_packed
from kt_core.weights import QuantType

pytestmark = pytest.mark.gpu


def build(
    shape, cuda, gate="Q4_K", down="Q6_K", dtype=torch.bfloat16, activation=None, biases=False
):
    inner = (shape.num_experts, shape.intermediate_size, shape.hidden_size)
    outer = (shape.num_experts, shape.hidden_size, shape.intermediate_size)
    generator = torch.Generator().manual_seed(3)

    def bias(width):
        return torch.randn(shape.num_experts, width, generator=generator) if biases else None

    weights = ExpertsWeights(
        random_packed(QuantType(gate), inner, 1, 0.05).unstack(),
        random_packed(QuantType(gate), inner, 2, 0.05).unstack(),
        random_packed(QuantType(down), outer, 3, 0.05).unstack(),
        bias(shape.intermediate_size),
        bias(shape.intermediate_size),
        bias(shape.hidden_size),
    )
    activation = activation or Activation()
    kernel = GgufExperts(shape, activation, KernelContext("e", dtype, cuda, {}))
    kernel.load(weights)
    reference = TorchExperts(shape, activation, KernelContext("r", torch.float64, cuda, {}))
    reference.load(weights)
    return kernel, reference


def inputs(tokens, shape, cuda, dtype=torch.bfloat16):
    x = torch.randn(tokens, shape.hidden_size, device=cuda).to(dtype)
    scores = torch.rand(tokens, shape.num_experts, device=cuda)
    weights, index = scores.topk(shape.top_k, dim=-1)
    return x, index, weights


def error(y, expected):
    return float((y.double() - expected).norm() / expected.norm())


def agrees(kernel, reference, x, index, weights, bound):
    expected = reference.forward(x.double(), index, weights.double())
    y = kernel.forward(x, index, weights)
    assert y.dtype == x.dtype
    # Three roundings to the activations' dtype: after the activation, of an expert's row, of the sum.
    assert error(y, expected) < bound


SHAPE = ExpertsShape(16, 512, 256, 4)


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 30, 100, 500, 2000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_any_number_of_tokens(tokens, dtype, cuda):
    kernel, reference = build(SHAPE, cuda, dtype=dtype)
    bound = 2e-3 if dtype == torch.float16 else 1.2e-2
    agrees(kernel, reference, *inputs(tokens, SHAPE, cuda, dtype), bound)


@pytest.mark.parametrize("stored", ["Q8_0", "Q4_0", "MXFP4", "Q5_K", "IQ4_XS"])
@pytest.mark.parametrize("tokens", [3, 60])
def test_other_formats(stored, tokens, cuda):
    kernel, reference = build(SHAPE, cuda, stored, stored)
    agrees(kernel, reference, *inputs(tokens, SHAPE, cuda), 1.2e-2)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "swiglu_oai", "relu"])
def test_activations_and_biases(kind, cuda):
    kernel, reference = build(SHAPE, cuda, activation=Activation(kind), biases=True)
    for tokens in (2, 90):
        agrees(kernel, reference, *inputs(tokens, SHAPE, cuda), 1.2e-2)


def test_widths_that_fill_no_block(cuda):
    shape = ExpertsShape(5, 320, 96, 2)
    kernel, reference = build(shape, cuda, "Q8_0", "Q8_0")
    for tokens in (1, 50):
        agrees(kernel, reference, *inputs(tokens, shape, cuda), 1.2e-2)
    shape = ExpertsShape(5, 256, 44, 2)
    inner, outer = (5, 44, 256), (5, 256, 44)
    weights = ExpertsWeights(
        random_packed(QuantType.F32, inner, 1, 0.05).unstack(),
        random_packed(QuantType.F32, inner, 2, 0.05).unstack(),
        random_packed(QuantType.F32, outer, 3, 0.05).unstack(),
    )
    options = {"num_bits": 8, "group_size": 32}
    marlin = MarlinExperts(shape, Activation(), KernelContext("e", torch.bfloat16, cuda, options))
    marlin.load(weights)
    reference = TorchExperts(shape, Activation(), KernelContext("r", torch.float64, cuda, {}))
    reference.load(weights)
    for tokens in (1, 50):
        agrees(marlin, reference, *inputs(tokens, shape, cuda), 2e-2)


def test_uneven_routing(cuda):
    kernel, reference = build(SHAPE, cuda)
    x, index, weights = inputs(700, SHAPE, cuda)
    index[:, 0] = 3
    index[5:50, 2] = -1
    index[60] = -1
    agrees(kernel, reference, x, index, weights, 1.2e-2)
    assert not kernel.forward(x, index, weights)[60].any()


@pytest.mark.parametrize("tokens", [2, 80])
@pytest.mark.parametrize("bad", [-2, 16, 2**40])
def test_ids_out_of_range_raise_and_do_no_harm(tokens, bad, cuda):
    kernel, reference = build(SHAPE, cuda)
    x, index, weights = inputs(tokens, SHAPE, cuda)
    wrong = index.clone()
    wrong[1, 2] = bad
    with pytest.raises(KernelError, match="KT557"):
        kernel.forward(x, wrong, weights)
    agrees(kernel, reference, x, index, weights, 1.2e-2)


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_a_graph_replays_with_new_routes(tokens, cuda):
    kernel, reference = build(SHAPE, cuda)
    x, index, weights = inputs(tokens, SHAPE, cuda)
    kernel.forward(x, index, weights)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kernel.forward(x, index, weights)
    for _ in range(3):
        new = inputs(tokens, SHAPE, cuda)
        for static, fresh in zip((x, index, weights), new, strict=True):
            static.copy_(fresh)
        y.fill_(float("nan"))
        graph.replay()
        expected = reference.forward(x.double(), index, weights.double())
        assert error(y, expected) < 1.2e-2


def test_torch_accepts_the_operator(cuda):
    kernel, _ = build(SHAPE, cuda)
    x, index, weights = inputs(3, SHAPE, cuda)
    compiled = torch.compile(kernel.forward, backend="aot_eager")
    assert torch.equal(compiled(x, index, weights), kernel.forward(x, index, weights))
