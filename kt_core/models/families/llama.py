"""Llama and the many models that are stored as one (SmolLM2, InternLM2.5, Mistral 7B, TinyLlama)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kt_core.models.binding import Binding
from kt_core.models.family import Family
from kt_core.models.metadata import Metadata


class Llama(Family):
    """``llama`` files without experts."""

    gguf = "llama"
    model_type = "llama"
    architectures = ("LlamaForCausalLM",)

    def config(self, metadata: Metadata, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Read LlamaConfig's arguments."""
        if metadata.count("expert_count", 0, least=0):
            raise metadata.wrong("expert_count", "belongs to Mixtral, which kt cannot load yet")
        heads = metadata.count("attention.head_count")
        hidden = metadata.count("embedding_length")
        head_dim = metadata.count("attention.key_length", hidden // heads)
        return {
            **dense_config(metadata, tensors),
            "head_dim": metadata.count("rope.dimension_count", head_dim),
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        }

    def bind(
        self, parameter: str, shape: tuple[int, ...], config: Any, present: Collection[str]
    ) -> Binding | None:
        """As usual, with the converter's row order of q and k undone."""
        found = super().bind(parameter, shape, config, present)
        if found is None:
            return None
        for part, heads in (
            (".q_proj.", config.num_attention_heads),
            (".k_proj.", config.num_key_value_heads),
        ):
            if part in parameter:
                return Binding(parameter, found.tensors, "unpermute_rope", {"heads": heads})
        return found


def dense_config(metadata: Metadata, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that all decoder-only families share."""
    layers = metadata.count("block_count")
    heads = metadata.count("attention.head_count")
    hidden = metadata.count("embedding_length")
    kv_heads = metadata.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise metadata.wrong("attention.head_count_kv", f"must divide the {heads} query heads")
    if not metadata.has("attention.key_length") and hidden % heads:
        raise metadata.wrong("attention.head_count", f"must divide the width {hidden}")
    present = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    if len(present) != layers:
        raise metadata.wrong("block_count", f"must equal the {len(present)} layers in the file")
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": metadata.count("feed_forward_length"),
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon", 1e-6),
        "vocab_size": vocab_size(metadata, tensors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": rope_parameters(metadata),
    }


def vocab_size(metadata: Metadata, tensors: Mapping[str, Any]) -> int:
    """Rows of the embedding: what the model really has, whatever the metadata says."""
    embedding = tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding is not None else metadata.count("vocab_size")


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
        parameters["original_max_position_embeddings"] = metadata.count(
            "rope.scaling.original_context_length"
        )
    return parameters
