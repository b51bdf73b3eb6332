"""Qwen3-MoE: 30B-A3B, 235B-A22B and the coder models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kt_core.models.families.llama import dense_config
from kt_core.models.family import Family
from kt_core.models.metadata import Metadata


class Qwen3Moe(Family):
    """``qwen3moe`` files: every layer sparse, stacked experts, softmax router with renormalisation."""

    gguf = "qwen3moe"
    model_type = "qwen3_moe"
    architectures = ("Qwen3MoeForCausalLM",)

    def config(self, metadata: Metadata, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Read Qwen3MoeConfig's arguments."""
        experts = metadata.count("expert_count")
        top_k = metadata.count("expert_used_count")
        if top_k > experts:
            raise metadata.wrong("expert_used_count", f"must be at most the {experts} experts")
        return {
            **dense_config(metadata, tensors),
            "head_dim": metadata.count("attention.key_length", 128),
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
