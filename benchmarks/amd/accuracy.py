"""How far a layer of int8 experts is from float32, by scheme and by how heavy the weights' tails are.

usage: accuracy.py [GGUF]      GGUF: a Llama-shaped model whose MLP is cut into experts (SmolLM2)

Prints a Markdown table of norm(y - y32) / norm(y32) for layers of 4 experts, hidden 1024, width 512,
top-2, Gaussian activations; and of the weights alone.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from kt_ops_amd_blis.experts import MoeInt8

from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.weights import PackedTensor, QuantType, open_weights
from kt_ops_amd_blis import reference

GROUPS = (0, 256, 128, 64, 32)
LAYERS = (0, 12, 29)


def packed(matrix: np.ndarray) -> PackedTensor:
    matrix = np.ascontiguousarray(matrix, np.float32)
    return PackedTensor("w", matrix.shape, QuantType.F32, matrix.view(np.uint8))


def layer_error(gate, up, down, top_k: int, group: int) -> float:
    experts, inter, hidden = gate.shape
    shape = ExpertsShape(experts, hidden, inter, top_k)
    context = KernelContext("accuracy", torch.float32, torch.device("cpu"), {"group_size": group})
    kernel = MoeInt8(shape, Activation(), context)
    kernel.load(ExpertsWeights(*([packed(m) for m in stack] for stack in (gate, up, down))))
    random = torch.Generator().manual_seed(0)
    x = torch.randn(64, hidden, generator=random)
    index = torch.stack([torch.randperm(experts, generator=random)[:top_k] for _ in range(64)])
    weights = torch.rand(64, top_k, generator=random)
    exact = torch.zeros(64, hidden, dtype=torch.float64)
    g, u, d = (torch.from_numpy(np.ascontiguousarray(s)).double() for s in (gate, up, down))
    for slot in range(top_k):
        for e in range(experts):
            rows = index[:, slot] == e
            part = x[rows].double()
            h = torch.nn.functional.silu(part @ g[e].T) * (part @ u[e].T)
            exact[rows] += weights[rows, slot, None] * (h @ d[e].T)
    result = kernel.forward(x, index, weights).double()
    return float((result - exact).norm() / exact.norm())


def weight_error(matrix: np.ndarray, group: int) -> float:
    q, scales = reference.quantize(matrix, group)
    width = group or matrix.shape[1]
    back = q.astype(np.float64) * np.repeat(scales, width, axis=1)[:, : matrix.shape[1]]
    return float(np.linalg.norm(back - matrix) / np.linalg.norm(matrix))


def synthetic(freedom: float) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    sizes = ((512, 1024), (512, 1024), (1024, 512))
    draw = random.standard_normal if np.isinf(freedom) else lambda s: random.standard_t(freedom, s)
    return tuple((draw((4, *size)) * 0.02).astype(np.float32) for size in sizes)


def real(path: str, layer: int) -> tuple[np.ndarray, ...]:
    """The MLP of one layer as 8 experts that are all chosen."""
    with open_weights(path) as source:
        gate, up, down = (
            source.tensor(f"blk.{layer}.ffn_{part}.weight").dequantize()
            for part in ("gate", "up", "down")
        )
    split = [np.split(m, 8, axis) for m, axis in ((gate, 0), (up, 0), (down, 1))]
    return tuple(np.stack(parts) for parts in split)


def main() -> int:
    cases = [
        ("Gaussian", synthetic(np.inf), 2),
        ("Student t, 8 degrees of freedom", synthetic(8), 2),
        ("Student t, 5", synthetic(5), 2),
        ("Student t, 3", synthetic(3), 2),
    ]
    if len(sys.argv) > 1:
        cases += [(f"SmolLM2-135M, layer {n}", real(sys.argv[1], n), 8) for n in LAYERS]
    print("| weights | " + " | ".join(f"group {g}" if g else "per channel" for g in GROUPS) + " |")
    print("|---|" + "---|" * len(GROUPS))
    for name, (gate, up, down), top_k in cases:
        errors = [
            f"{layer_error(gate, up, down, top_k, g):.4f} ({weight_error(gate[0], g):.4f})"
            for g in GROUPS
        ]
        print(f"| {name} | " + " | ".join(errors) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
