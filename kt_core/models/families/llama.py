"""Llama and the many models that are stored as one (SmolLM2, Mistral 7B), and InternLM2.5."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, head_dim
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata


class Llama(Family):
    """``llama`` files without experts. A Mistral is one, apart from its unused sliding window."""

    gguf = "llama"
    model_type = "llama"
    architectures = ("LlamaForCausalLM", "MistralForCausalLM")
    other_model_types = ("mistral",)

    def serves(self, metadata: Metadata, tensors: Present) -> bool:
        """Mixtral has the same name and experts."""
        return not metadata.count("expert_count", 0, least=0)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read LlamaConfig's arguments."""
        return {
            **dense_config(metadata, tensors),
            "head_dim": metadata.count("rope.dimension_count", head_dim(metadata)),
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        }

    def transform(self, parameter: str, config: Any) -> tuple[str, dict[str, Any]]:
        """Undo the converter's row order of q and k."""
        return rotary_rows(parameter, config)


class InternLM2(Llama):
    """``internlm2`` files: InternLM2.5 with its fused projections taken apart is a Llama."""

    gguf = "internlm2"


def rotary_rows(parameter: str, config: Any) -> tuple[str, dict[str, Any]]:
    """The transform of ``q_proj`` and ``k_proj`` in files whose rotary pairs stand side by side."""
    if ".q_proj." in parameter:
        return "unpermute_rope", {"heads": config.num_attention_heads}
    if ".k_proj." in parameter:
        return "unpermute_rope", {"heads": config.num_key_value_heads}
    return "as_is", {}
