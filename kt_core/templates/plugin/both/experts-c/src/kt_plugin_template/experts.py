"""A kernel of ``kt_core.Experts``: a whole layer in one call of C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from kt_core.operators.kernel import ExpertsKernel, ExpertsWeights, KernelContext
from kt_core.weights import TensorInfo

from kt_plugin_template.backend import native
from kt_plugin_template.layer import check_ids, check_layer
from kt_plugin_template.products import Addresses, pointer


class Experts(ExpertsKernel):
    """Computes in float32, whatever the activations' dtype, and rounds once at the end."""

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """See :class:`kt_core.operators.kernel.Kernel`: the file's own pages, nothing else."""
        return sum(info.nbytes for info in weights)

    def load(self, weights: ExpertsWeights) -> None:
        """Take the weights of every expert."""
        check_layer(self.context.name, self.shape, self.activation, weights)
        self._parts = [Addresses(part) for part in (weights.gate, weights.up, weights.down)]
        shape, (gate, up, down) = self.shape, (part.array for part in self._parts)
        sizes = (shape.num_experts, shape.hidden_size, shape.intermediate_size)
        self._layer: Any = native().ffi.new("kt_plugin_template_layer *", (*sizes, gate, up, down))
        self._chunk = int(self.context.options.get("chunk_tokens", 512))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Map ``(tokens, hidden)`` to the weighted sum over each token's experts."""
        check_ids(self.context.name, top_k_index, self.shape.num_experts)
        y = torch.empty_like(hidden_states, dtype=torch.float32).contiguous()
        for start in range(0, hidden_states.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            self._compute(
                hidden_states[part].float().contiguous(),
                top_k_index[part].long().contiguous(),
                top_k_weights[part].float().contiguous(),
                y[part],
            )
        return y.to(hidden_states.dtype)

    def _compute(
        self, x: torch.Tensor, index: torch.Tensor, share: torch.Tensor, y: torch.Tensor
    ) -> None:
        # The GIL is released during the call. The tensors live until it returns: they are ours.
        work = torch.empty(self.shape.intermediate_size)
        native().lib.kt_plugin_template_experts(
            self._layer,
            pointer("float *", x),
            pointer("int64_t *", index),
            pointer("float *", share),
            pointer("float *", y),
            pointer("float *", work),
            *index.shape,
        )
