"""Hyperparameters that many families store the same way, as arguments of transformers' configs."""

from __future__ import annotations

from typing import Any

from kt_core.models.family import Present
from kt_core.models.metadata import Metadata

SOFTMAX, SIGMOID = "softmax", "sigmoid"

_GATING = {1: SOFTMAX, 2: SIGMOID}


def dense_config(metadata: Metadata, tensors: Present) -> dict[str, Any]:
    """The part of a config that all decoder-only families share."""
    heads = metadata.count("attention.head_count")
    hidden = metadata.count("embedding_length")
    kv_heads = metadata.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise metadata.wrong("attention.head_count_kv", f"must divide the {heads} query heads")
    return {
        "num_hidden_layers": layer_count(metadata, tensors),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": metadata.count("feed_forward_length"),
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon", 1e-6),
        "vocab_size": vocab_size(metadata, tensors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": rope_parameters(metadata),
        **token_ids(metadata),
    }


def layer_count(metadata: Metadata, tensors: Present) -> int:
    """Decoder layers, without those that only predict further tokens ahead."""
    blocks = metadata.count("block_count")
    extra = metadata.count("nextn_predict_layers", 0, least=0)
    if extra >= blocks:
        raise metadata.wrong("nextn_predict_layers", f"must be below the {blocks} blocks")
    present = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    # Some converters drop the layers that predict ahead, and leave or correct the count.
    if len(present) == blocks:
        return blocks - extra
    if len(present) == blocks - extra:
        return len(present)
    raise metadata.wrong("block_count", f"must equal the {len(present)} layers in the file")


def head_dim(metadata: Metadata, default: int | None = None) -> int:
    """Width of one attention head, by default the model's width divided among the heads."""
    if not metadata.has("attention.key_length") and default is None:
        heads = metadata.count("attention.head_count")
        hidden = metadata.count("embedding_length")
        if hidden % heads:
            raise metadata.wrong("attention.head_count", f"must divide the width {hidden}")
        default = hidden // heads
    return metadata.count("attention.key_length", default)


def vocab_size(metadata: Metadata, tensors: Present) -> int:
    """Rows of the embedding: what the model really has, whatever the metadata says."""
    embedding = tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding is not None else metadata.count("vocab_size")


def token_ids(metadata: Metadata) -> dict[str, Any]:
    """Ids of the special tokens that generation looks at."""
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {
        target: metadata.values.get(f"tokenizer.ggml.{name}_token_id")
        for name, target in names.items()
    }
    return {name: value if isinstance(value, int) else None for name, value in found.items()}


def rope_parameters(metadata: Metadata) -> dict[str, Any]:
    """Base frequency and scaling, in transformers' words."""
    parameters: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
    }
    kind = metadata.text("rope.scaling.type", "none")
    if kind == "none":
        return parameters
    if kind not in ("linear", "yarn"):
        raise metadata.wrong("rope.scaling.type", "must be none, linear or yarn")
    parameters["rope_type"] = kind
    parameters["factor"] = metadata.number("rope.scaling.factor")
    if kind == "yarn":
        parameters |= _yarn(metadata)
    return parameters


def _yarn(metadata: Metadata) -> dict[str, Any]:
    values: dict[str, Any] = {
        "original_max_position_embeddings": metadata.count("rope.scaling.original_context_length")
    }
    for key, name in (
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if metadata.has(f"rope.scaling.{key}"):
            values[name] = metadata.number(f"rope.scaling.{key}")
    return values


def partial_rotary(metadata: Metadata, width: int, default: int) -> float:
    """Share of each head that is rotated."""
    rotated = metadata.count("rope.dimension_count", default)
    if rotated > width or rotated % 2:
        raise metadata.wrong("rope.dimension_count", f"must be even and at most {width}")
    return rotated / width


def routed_experts(metadata: Metadata) -> tuple[int, int]:
    """Experts per layer and how many of them run for a token."""
    experts = metadata.count("expert_count")
    top_k = metadata.count("expert_used_count")
    if top_k > experts:
        raise metadata.wrong("expert_used_count", f"must be at most the {experts} experts")
    return experts, top_k


def expert_groups(metadata: Metadata, experts: int, default: tuple[int, int]) -> tuple[int, int]:
    """Groups the experts stand in, and from how many of them a token's experts may come."""
    groups = metadata.count("expert_group_count", default[0])
    used = metadata.count("expert_group_used_count", default[1])
    if experts % groups or used > groups:
        raise metadata.wrong(
            "expert_group_count", f"must divide {experts} experts and be at least {used}"
        )
    return groups, used


def gating(metadata: Metadata, tensors: Present) -> str:
    """How router scores become weights: :data:`SOFTMAX` or :data:`SIGMOID`.

    Older files do not say. Only sigmoid routers have a correction bias.
    """
    biased = any(".exp_probs_b" in name for name in tensors)
    return metadata.choice("expert_gating_func", _GATING, SIGMOID if biased else SOFTMAX)
