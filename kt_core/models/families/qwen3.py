"""Qwen3, dense."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, head_dim
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata


class Qwen3(Family):
    """``qwen3`` files: norms on every head's q and k."""

    gguf = "qwen3"
    model_type = "qwen3"
    architectures = ("Qwen3ForCausalLM",)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Qwen3Config's arguments."""
        return {**dense_config(metadata, tensors), "head_dim": head_dim(metadata, 128)}
