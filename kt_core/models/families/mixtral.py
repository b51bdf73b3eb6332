"""Mixtral 8x7B and 8x22B."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, head_dim, routed_experts
from kt_core.models.families.llama import rotary_rows
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata


class Mixtral(Family):
    """``llama`` files with experts, stacked or, from old converters, one tensor per expert."""

    gguf = "llama"
    model_type = "mixtral"
    architectures = ("MixtralForCausalLM",)
    checkpoint_renames = ((".mlp.", ".block_sparse_moe."),)

    def serves(self, metadata: Metadata, tensors: Present) -> bool:
        """Llama has the same name and no experts."""
        return metadata.count("expert_count", 0, least=0) > 0

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read MixtralConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        return {
            **dense_config(metadata, tensors),
            "head_dim": metadata.count("rope.dimension_count", head_dim(metadata)),
            "num_local_experts": experts,
            "num_experts_per_tok": top_k,
        }

    def transform(self, parameter: str, config: Any) -> tuple[str, dict[str, Any]]:
        """Undo the converter's row order of q and k."""
        return rotary_rows(parameter, config)
