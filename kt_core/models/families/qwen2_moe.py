"""Qwen2-MoE: 57B-A14B and Qwen1.5-MoE-A2.7B."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, routed_experts
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata


class Qwen2Moe(Family):
    """``qwen2moe`` files: stacked experts, softmax router, a shared expert behind a gate."""

    gguf = "qwen2moe"
    model_type = "qwen2_moe"
    architectures = ("Qwen2MoeForCausalLM",)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Qwen2MoeConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        stacked = tensors.get("blk.0.ffn_gate_exps.weight")
        shared = tensors.get("blk.0.ffn_gate_shexp.weight")
        return {
            **values,
            "qkv_bias": "blk.0.attn_q.bias" in tensors,
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            # Files of the first converters lack the two widths.
            "moe_intermediate_size": metadata.count(
                "expert_feed_forward_length", stacked.shape[1] if stacked else None
            ),
            "shared_expert_intermediate_size": metadata.count(
                "expert_shared_feed_forward_length", shared.shape[0] if shared else None
            ),
            "norm_topk_prob": metadata.flag("expert_weights_norm", False),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
