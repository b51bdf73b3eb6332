"""How far int8 is from float32 on weights like those of real models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kt_ops_amd_blis.experts import MoeInt8

from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.weights import PackedTensor, QuantType, open_weights

pytestmark = pytest.mark.usefixtures("blis")


def layer(stacks, top_k, **options):
    experts, (inter, hidden) = len(stacks[0]), stacks[0][0].shape
    context = KernelContext("mlp", torch.float32, torch.device("cpu"), options)
    kernel = MoeInt8(ExpertsShape(experts, hidden, inter, top_k), Activation(), context)
    kernel.load(ExpertsWeights(*stacks))
    return kernel


def exact(stacks, x, index, weights):
    out = torch.zeros_like(x)
    gate, up, down = (
        torch.stack([torch.from_numpy(t.dequantize().copy()) for t in stack]) for stack in stacks
    )
    for slot in range(index.shape[1]):
        for e in range(len(gate)):
            rows = index[:, slot] == e
            h = torch.nn.functional.silu(x[rows] @ gate[e].T) * (x[rows] @ up[e].T)
            out[rows] += weights[rows, slot, None] * (h @ down[e].T)
    return out


def relative(actual, wanted):
    return float((actual - wanted).norm() / wanted.norm())


# Heavier tails cost a scale per channel more than a scale per group: the largest of 1024 values sets
# the step for all of them. Bounds are a tenth above what benchmarks/amd/accuracy.py prints.
@pytest.mark.parametrize(
    ("freedom", "group", "bound"),
    [(1000, 0, 0.027), (1000, 128, 0.021), (5, 0, 0.036), (5, 128, 0.026), (5, 32, 0.0185)],
)
def test_heavy_tails(freedom, group, bound):
    random = np.random.default_rng(0)
    sizes = ((512, 1024), (512, 1024), (1024, 512))
    stacks = [
        [
            PackedTensor(f"{e}", size, QuantType.F32, w.astype(np.float32).view(np.uint8))
            for e, w in enumerate(random.standard_t(freedom, (4, *size)) * 0.02)
        ]
        for size in sizes
    ]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1024, generator=generator)
    index = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(64)])
    weights = torch.rand(64, 2, generator=generator)
    error = relative(
        layer(stacks, 2, group_size=group).forward(x, index, weights),
        exact(stacks, x, index, weights),
    )
    assert error < bound


@pytest.mark.model
@pytest.mark.parametrize(("group", "bound"), [(0, 0.024), (64, 0.018)])
def test_a_real_layer_as_experts(smollm2, group, bound):
    """SmolLM2's MLP cut into eight experts that are all chosen is the MLP itself."""
    experts = 8
    with open_weights(smollm2) as source:
        gate, up, down = (
            source.tensor(f"blk.12.ffn_{part}.weight").dequantize()
            for part in ("gate", "up", "down")
        )
    inter, hidden = gate.shape
    width = inter // experts

    def packed(matrix):
        matrix = np.ascontiguousarray(matrix)
        return PackedTensor("cut", matrix.shape, QuantType.F32, matrix.view(np.uint8))

    cuts = [slice(e * width, (e + 1) * width) for e in range(experts)]
    stacks = [
        [packed(gate[cut]) for cut in cuts],
        [packed(up[cut]) for cut in cuts],
        [packed(down[:, cut]) for cut in cuts],
    ]
    x = torch.randn(48, hidden, generator=torch.Generator().manual_seed(0))
    dense = torch.nn.functional.silu(x @ torch.from_numpy(gate.copy()).T)
    dense = (dense * (x @ torch.from_numpy(up.copy()).T)) @ torch.from_numpy(down.copy()).T
    every = torch.arange(experts).expand(48, experts)
    result = layer(stacks, experts, group_size=group).forward(x, every, torch.ones(48, experts))
    assert relative(result, dense) < bound
