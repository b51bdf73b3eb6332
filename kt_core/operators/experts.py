"""``kt_core.Experts``: the routed experts of a layer, one kernel per phase."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.errors import PlanError
from kt_core.models.family import num_experts
from kt_core.operators.host import host_calls
from kt_core.operators.kernel import Activation, ExpertsKernel, ExpertsShape
from kt_core.operators.offload import Result, lane_from
from kt_core.operators.operator import ModuleWeights, OperatorContext, PhasedOperator

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


class Experts(PhasedOperator):
    """Stands for transformers' fused experts: ``(hidden_states, top_k_index, top_k_weights)``."""

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        shape = self.kernel_shape(original, context.config)
        self.num_experts = shape.num_experts
        self.build_kernels(shape, self.activation(context.config))

    @classmethod
    def kernel_shape(cls, original: nn.Module, config: Any) -> ExpertsShape:
        """Read the sizes off the fused parameters.

        Raises:
            PlanError: KT311 if the module does not hold fused experts.
        """
        down = getattr(original, "down_proj", None)
        if not isinstance(down, torch.Tensor) or down.dim() != 3:
            raise PlanError.of(
                "KT311",
                f"{type(original).__name__} has no fused expert weights",
                facts=["expected: a parameter down_proj of (experts, hidden, intermediate)"],
                help="match the module that holds the experts, e.g. name: mlp\\.experts$",
            )
        experts, hidden, intermediate = down.shape
        if num_experts(config) == experts and hidden != config.hidden_size:
            hidden, intermediate = intermediate, hidden
        top_k = int(getattr(config, "num_experts_per_tok", 0) or 1)
        return ExpertsShape(int(experts), int(hidden), int(intermediate), top_k)

    @classmethod
    def activation(cls, config: Any) -> Activation:
        """The gate's activation, from the configuration.

        Raises:
            PlanError: KT312 for one that no kernel knows.
        """
        if config.model_type == "gpt_oss":
            alpha = float(getattr(config, "swiglu_alpha", 1.702))
            return Activation("swiglu_oai", alpha, float(getattr(config, "swiglu_limit", 7.0)))
        name = config.hidden_act
        if name not in _ACTIVATIONS:
            raise PlanError.of(
                "KT312",
                f'the experts\' activation "{name}" is not supported',
                facts=[f"supported: {', '.join(sorted(_ACTIVATIONS))}"],
                help="keep the experts as they are: class: default",
            )
        return Activation(_ACTIVATIONS[name])

    def load(self, weights: ModuleWeights) -> None:
        """Give every kernel the views of all experts."""
        experts = weights.experts()
        self.load_kernels(lambda kernel: kernel.load(experts))

    def forward(
        self,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Run the phase that ``hidden_states`` ``(tokens, hidden)`` calls for."""
        kernel: ExpertsKernel = self.kernel_for(hidden_states.shape[0])
        host = host_calls(kernel.context.device, hidden_states)
        if host is not None:
            return host.call(kernel.forward, (hidden_states, top_k_index, top_k_weights))
        return self.submit(hidden_states, top_k_index, top_k_weights)()

    def submit(
        self,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> Result:
        """Start the phase that ``hidden_states`` calls for; return what waits for its result.

        Only work for the host that comes from another device, and kernels that say so themselves, go on
        while the caller does; all else is done when this returns. On one device there is nothing to
        gain: experts keep all of its cores busy.
        """
        kernel: ExpertsKernel = self.kernel_for(hidden_states.shape[0])
        device = kernel.context.device
        home = self.context.out_device or hidden_states.device
        inputs = (hidden_states, top_k_index, top_k_weights)
        host = host_calls(device, hidden_states)
        if host is not None:
            return host.submit(kernel.forward, inputs).result
        if device.type == "cpu" and hidden_states.device.type != "cpu":
            wait = lane_from(hidden_states.device).submit(kernel.forward, inputs)
        else:
            wait = kernel.submit(*(t if t.device == device else t.to(device) for t in inputs))

        def result() -> torch.Tensor:
            y = wait()
            return y if y.device == home else y.to(home)

        return result
