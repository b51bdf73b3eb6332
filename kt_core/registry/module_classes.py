"""Which of transformers' classes the operators of :mod:`kt_core.operators.fused` can stand for.

Data for the specs of plugins; neither torch nor transformers is imported.
"""

from __future__ import annotations


def _classes(part: str, *families: str) -> tuple[str, ...]:
    """Qualified names, from ``module:Prefix`` as transformers spells its families."""
    return tuple(
        f"transformers.models.{module}.modeling_{module}.{prefix}{part}"
        for module, prefix in (family.split(":") for family in families)
    )


_LIKE_LLAMA = (
    "llama:Llama",
    "mistral:Mistral",
    "mixtral:Mixtral",
    "qwen2:Qwen2",
    "qwen3:Qwen3",
    "qwen2_moe:Qwen2Moe",
    "qwen3_moe:Qwen3Moe",
    "glm4_moe:Glm4Moe",
)

ATTENTION = _classes("Attention", *_LIKE_LLAMA)
"""Projections, rotation by halves, grouped heads, perhaps norms of the heads."""

DECODER_LAYERS = _classes("DecoderLayer", *_LIKE_LLAMA)
"""Norm, attention, sum, norm, MLP, sum."""

RMS_NORMS = _classes(
    "RMSNorm",
    *_LIKE_LLAMA,
    "deepseek_v2:DeepseekV2",
    "deepseek_v3:DeepseekV3",
    "gemma3:Gemma3",
    "gpt_oss:GptOss",
    "minimax_m2:MiniMaxM2",
)

SOFTMAX_ROUTERS = _classes(
    "TopKRouter", "mixtral:Mixtral", "qwen2_moe:Qwen2Moe", "qwen3_moe:Qwen3Moe"
)
