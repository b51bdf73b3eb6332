"""What a layer of experts is checked for before anything is computed."""

from __future__ import annotations

import torch
from kt_core.errors import KernelError
from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights


def check_layer(
    name: str, shape: ExpertsShape, activation: Activation, weights: ExpertsWeights
) -> None:
    """Refuse what these kernels do not compute.

    Raises:
        KernelError: KT592 for another activation than SiLU or for biases, KT502 for a wrong shape.
    """
    biases = (weights.gate_bias, weights.up_bias, weights.down_bias)
    if activation.kind != "silu" or any(bias is not None for bias in biases):
        raise KernelError.of(
            "KT592",
            f"{name}: kt-plugin-template computes SiLU without biases",
            facts=[f"this layer has the activation {activation.kind}"],
            help="name another kernel for this model, such as kt_core.torch_experts",
        )
    inner = (shape.intermediate_size, shape.hidden_size)
    for part, expected in (
        (weights.gate, inner),
        (weights.up, inner),
        (weights.down, inner[::-1]),
    ):
        for tensor in part:
            if tensor.shape != expected:
                raise KernelError.of(
                    "KT502",
                    f"{name}: {tensor.name} must be {list(expected)}, is {list(tensor.shape)}",
                )


def check_ids(name: str, index: torch.Tensor, experts: int) -> None:
    """Refuse ids that are no expert's; -1 stands for none.

    Raises:
        KernelError: KT503.
    """
    wrong = index[(index < -1) | (index >= experts)]
    if wrong.numel():
        raise KernelError.of(
            "KT503",
            f"{name} was asked for expert {int(wrong[0])}",
            facts=[f"it has {experts} experts, counted from 0"],
        )
