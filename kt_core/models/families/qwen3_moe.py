"""Qwen3-MoE: 30B-A3B, 235B-A22B and the coder models."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, head_dim, routed_experts
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata


class Qwen3Moe(Family):
    """``qwen3moe`` files: stacked experts, softmax router with renormalisation."""

    gguf = "qwen3moe"
    model_type = "qwen3_moe"
    architectures = ("Qwen3MoeForCausalLM",)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Qwen3MoeConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        return {
            **values,
            "head_dim": head_dim(metadata, 128),
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
            "norm_topk_prob": metadata.flag("expert_weights_norm", True),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
