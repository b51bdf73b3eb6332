"""``kt_core.MoeBlock``: router, routed experts and shared experts, the last two side by side.

Routed experts on the CPU and shared ones on a GPU have nothing to wait for in each other. The block
starts the routed ones, computes the shared ones meanwhile and adds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.operators.experts import Experts
from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext

_CORRECTION = "e_score_correction_bias"


class MoeBlock(Operator):
    """Stands for transformers' sparse MoE blocks: the parts are the original's own, under their names.

    Which parts there are is what differs: ``shared_experts`` (DeepSeek, GLM), ``shared_expert`` behind
    ``shared_expert_gate`` (Qwen), or none (Mixtral, Qwen3-MoE); a correction bias kept in the block
    itself (MiniMax) or in the router.
    """

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        for name, child in original.named_children():
            self.add_module(name, child)
        for name, buffer in original.named_buffers(recurse=False):
            self.register_buffer(name, buffer)

    def load(self, weights: ModuleWeights) -> None:
        """Take the correction bias, where the block has one; parts are modules of the plan."""
        stored = weights.packed(_CORRECTION)
        if stored is not None:
            self._buffers[_CORRECTION] = stored.to_torch(torch.float32, self.context.device)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map ``(batch, n, hidden)`` to the weighted sum of routed experts plus the shared ones."""
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        gate: Any = self.gate
        correction = self._buffers.get(_CORRECTION)
        chosen = gate(flat) if correction is None else gate(flat, correction)
        _, weights, index = chosen
        parts: dict[str, Any] = self._modules
        experts = parts["experts"]
        if isinstance(experts, Experts):
            routed = experts.submit(flat, index, weights)
            shared = self._shared(flat)
            output = routed()
        else:
            output = experts(flat, index, weights)
            shared = self._shared(flat)
        if shared is not None:
            output = output + shared.to(output.device)
        home = self.context.out_device or hidden_states.device
        if output.device != home:
            output = output.to(home)
        return output.view(hidden_states.shape)

    def _shared(self, flat: torch.Tensor) -> torch.Tensor | None:
        parts: dict[str, Any] = self._modules
        if "shared_experts" in parts:
            together: torch.Tensor = parts["shared_experts"](flat)
            return together
        if "shared_expert" in parts:
            one: torch.Tensor = parts["shared_expert"](flat)
            return torch.sigmoid(parts["shared_expert_gate"](flat)) * one
        return None
