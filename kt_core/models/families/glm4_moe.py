"""GLM-4.5 and GLM-4.5-Air."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import (
    dense_config,
    expert_groups,
    head_dim,
    partial_rotary,
    routed_experts,
)
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata
from kt_core.models.names import ROUTER_BIAS


class Glm4Moe(Family):
    """``glm4moe`` files: DeepSeek-V3's router, ordinary attention of which half is rotated.

    The files end with a layer that predicts one token further ahead, which is not loaded.
    """

    gguf = "glm4moe"
    model_type = "glm4_moe"
    architectures = ("Glm4MoeForCausalLM",)
    spellings = ROUTER_BIAS

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Glm4MoeConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        groups, used_groups = expert_groups(metadata, experts, (1, 1))
        values = dense_config(metadata, tensors)
        width = head_dim(metadata, 128)
        values["rope_parameters"]["partial_rotary_factor"] = partial_rotary(
            metadata, width, width // 2
        )
        return {
            **values,
            "head_dim": width,
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
            "n_routed_experts": experts,
            "num_experts_per_tok": top_k,
            "n_shared_experts": metadata.count("expert_shared_count", 1),
            "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
            "first_k_dense_replace": metadata.count("leading_dense_block_count", 1, least=0),
            "n_group": groups,
            "topk_group": used_groups,
            "norm_topk_prob": metadata.flag("expert_weights_norm", True),
            "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        }
