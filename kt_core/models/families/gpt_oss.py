"""gpt-oss 20B and 120B."""

from __future__ import annotations

from typing import Any, ClassVar

from kt_core.models.families.common import dense_config, head_dim, routed_experts
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata
from kt_core.models.names import Spellings


class GptOss(Family):
    """``gpt-oss`` files: biases everywhere, attention sinks, MXFP4 experts.

    transformers keeps the experts' matrices transposed, gate and up columns alternating; the file
    keeps them apart and upright, as kernels want them.
    """

    gguf = "gpt-oss"
    model_type = "gpt_oss"
    architectures = ("GptOssForCausalLM",)
    spellings: ClassVar[Spellings] = {"self_attn.sinks": ("attn_sinks.weight", "attn_sinks")}
    experts_in_columns = True

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read GptOssConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        if values["rope_parameters"]["rope_type"] == "yarn":
            # gpt-oss was trained without rounding the ramp's ends, which the file does not record.
            values["rope_parameters"] = {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                **values["rope_parameters"],
                "truncate": False,
            }
        return {
            **values,
            "head_dim": head_dim(metadata, 64),
            "intermediate_size": metadata.count(
                "expert_feed_forward_length", values["intermediate_size"]
            ),
            "num_local_experts": experts,
            "num_experts_per_tok": top_k,
            "sliding_window": metadata.count("attention.sliding_window", 128),
            "attention_bias": "blk.0.attn_q.bias" in tensors,
        }
