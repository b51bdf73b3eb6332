"""Qwen2 and Qwen2.5, and the distillations made of them."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata


class Qwen2(Family):
    """``qwen2`` files: biases on q, k and v."""

    gguf = "qwen2"
    model_type = "qwen2"
    architectures = ("Qwen2ForCausalLM",)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Qwen2Config's arguments."""
        return dense_config(metadata, tensors)
