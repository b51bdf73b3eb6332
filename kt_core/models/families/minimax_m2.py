"""MiniMax-M2 and M2.1."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, head_dim, partial_rotary, routed_experts
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata
from kt_core.models.names import ROUTER_BIAS


class MiniMaxM2(Family):
    """``minimax-m2`` files: sigmoid router with a correction bias, q and k norms over all heads."""

    gguf = "minimax-m2"
    model_type = "minimax_m2"
    architectures = ("MiniMaxM2ForCausalLM",)
    spellings = ROUTER_BIAS
    checkpoint_renames = ((".mlp.", ".block_sparse_moe."),)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read MiniMaxM2Config's arguments."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        width = head_dim(metadata, 128)
        values["rope_parameters"]["partial_rotary_factor"] = partial_rotary(
            metadata, width, width // 2
        )
        return {
            **values,
            "head_dim": width,
            "intermediate_size": metadata.count(
                "expert_feed_forward_length", values["intermediate_size"]
            ),
            "num_local_experts": experts,
            "num_experts_per_tok": top_k,
        }
