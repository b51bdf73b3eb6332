"""SmallThinker 4B-A0.6B and 21B-A3B; the classes are kt's own, in ``kt_core.models.hf_smallthinker``."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import SOFTMAX, dense_config, gating, head_dim, routed_experts
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata

_PERIOD = 4
"""In files with a window, each layer whose number it divides attends to all tokens and does not rotate."""


class SmallThinker(Family):
    """``smallthinker`` files: stacked ReLU experts, a router before attention."""

    gguf = "smallthinker"
    model_type = "smallthinker"
    architectures = ("SmallThinkerForCausalLM",)
    experts = "block_sparse_moe.experts"
    classes = "kt_core.models.hf_smallthinker"

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read SmallThinkerConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        layers = values["num_hidden_layers"]
        window = metadata.count("attention.sliding_window", 0, least=0)
        # The file records no layouts; all published models have this one.
        layout = [int(bool(layer % _PERIOD)) for layer in range(layers)]
        del values["intermediate_size"]
        return {
            **values,
            "head_dim": head_dim(metadata, 128),
            "rope_layout": layout if window else [1] * layers,
            "sliding_window_layout": layout if window else [0] * layers,
            "sliding_window_size": window or None,
            "moe_num_primary_experts": experts,
            "moe_num_active_primary_experts": top_k,
            "moe_ffn_hidden_size": metadata.count(
                "expert_feed_forward_length", metadata.count("feed_forward_length")
            ),
            "moe_primary_router_apply_softmax": gating(metadata, tensors) == SOFTMAX,
        }
