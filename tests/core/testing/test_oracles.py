"""The oracles agree with torch's own functions, activation by activation, biases included."""

from __future__ import annotations

import pytest
import torch

from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.operators.torch_experts import TorchExperts
from kt_core.testing import experts_oracle, linear_oracle, random_packed, relative_error

SHAPE = ExpertsShape(4, 64, 32, 2)


def weights(biases: bool) -> ExpertsWeights:
    inner, outer = (4, 32, 64), (4, 64, 32)
    parts = (
        random_packed("Q8_0", s, n, 0.3).unstack() for n, s in enumerate((inner, inner, outer))
    )
    generator = torch.Generator().manual_seed(1)
    sizes = (32, 32, 64) if biases else ()
    return ExpertsWeights(*parts, *(torch.randn(4, n, generator=generator) for n in sizes))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_experts(kind, biases):
    layer, activation = weights(biases), Activation(kind)
    kernel = TorchExperts(
        SHAPE, activation, KernelContext("test", torch.float64, torch.device("cpu"), {})
    )
    kernel.load(layer)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 64, generator=generator, dtype=torch.float64) * 3
    share, index = torch.rand(6, 4, generator=generator, dtype=torch.float64).topk(2)
    index[3] = -1
    expected = experts_oracle(x, index, share, layer, activation)
    # Both compute in float64; the weights were float32 in one of them.
    assert relative_error(kernel.forward(x, index, share), expected) < 1e-6


def test_an_expert_that_is_not_there():
    with pytest.raises(IndexError, match="no expert 4"):
        experts_oracle(torch.zeros(1, 64), torch.tensor([[4]]), torch.ones(1, 1), weights(False))


def test_linear():
    packed, bias = random_packed("Q4_K", (8, 256)), torch.arange(8.0)
    x = torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.linear(x, torch.from_numpy(packed.dequantize().copy()), bias)
    assert relative_error(linear_oracle(x, packed, bias), expected) < 1e-6
