"""Gemma 3, the text model."""

from __future__ import annotations

from typing import Any

from kt_core.models.families.common import dense_config, head_dim
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata

_FULL, _SLIDING = "full_attention", "sliding_attention"
_PATTERN = 6
_LARGEST = 62
"""Layers of the 27B model; it alone scales attention by ``hidden_size / num_attention_heads``."""


class Gemma3(Family):
    """``gemma3`` files: five sliding layers to each full one, norms stored with their offset."""

    gguf = "gemma3"
    model_type = "gemma3_text"
    architectures = ("Gemma3ForCausalLM",)

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Gemma3TextConfig's arguments."""
        values = dense_config(metadata, tensors)
        layers = values["num_hidden_layers"]
        width = head_dim(metadata, 256)
        window = metadata.count("attention.sliding_window", 0, least=0)
        pattern = _PATTERN if window else 1
        scaled_by = width
        if layers == _LARGEST:
            scaled_by = values["hidden_size"] // values["num_attention_heads"]
        softcap = "final_logit_softcapping"
        return {
            **values,
            "head_dim": width,
            "query_pre_attn_scalar": scaled_by,
            "sliding_window": window or None,
            "layer_types": [_SLIDING if (i + 1) % pattern else _FULL for i in range(layers)],
            "rope_parameters": {
                _FULL: values["rope_parameters"] | {"rope_theta": self._theta(metadata)},
                _SLIDING: {
                    "rope_type": "default",
                    "rope_theta": metadata.number("rope.freq_base_swa", 10_000.0),
                },
            },
            "final_logit_softcapping": metadata.number(softcap) if metadata.has(softcap) else None,
        }

    @staticmethod
    def _theta(metadata: Metadata) -> float:
        return metadata.number("rope.freq_base", 1_000_000.0)

    def transform(self, parameter: str, config: Any) -> tuple[str, dict[str, Any]]:
        """Norms multiply by ``1 + weight``; the file holds the sum."""
        return ("subtract_one" if parameter.endswith("norm.weight") else "as_is"), {}
