"""DeepSeek-V2 and V2-Lite, V3 and R1, Moonlight, Kimi-K2: multi-head latent attention."""

from __future__ import annotations

from typing import Any, ClassVar

from kt_core.models.binding import Binding
from kt_core.models.families.common import (
    SIGMOID,
    SOFTMAX,
    dense_config,
    expert_groups,
    gating,
    routed_experts,
)
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata
from kt_core.models.names import ROUTER_BIAS, block_of

# What files leave out that were converted before there was a key for it, by (layers, experts):
# groups, groups used, and YaRN's ramp where it is not the usual (32, 1).
_GROUPS = {
    (60, 160): (8, 3),  # V2, V2.5
    (61, 256): (8, 4),  # V3, R1
}
_RAMP = {
    (61, 384): (1.0, 1.0),  # Kimi-K2
}


class _Deepseek2(Family):
    gguf = "deepseek2"
    # Some files hold both forms of kv_b; the whole one is taken.
    ignored = (r"blk\.\d+\.attn_[kv]_b\.weight",)
    gating: ClassVar[str]

    def serves(self, metadata: Metadata, tensors: Present) -> bool:
        """V2 and V3 share the architecture's name and differ by their routers."""
        return gating(metadata, tensors) == self.gating

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read the arguments that both generations' configs share."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        layers = values["num_hidden_layers"]
        groups, used_groups = expert_groups(
            metadata, experts, _GROUPS.get((layers, experts), (1, 1))
        )
        rotated = metadata.count("rope.dimension_count", 64)
        # Files made for the absorbed form give the compressed widths under the plain keys.
        key = metadata.count("attention.key_length_mla", metadata.count("attention.key_length"))
        value = metadata.count(
            "attention.value_length_mla", metadata.count("attention.value_length")
        )
        if rotated >= key:
            raise metadata.wrong("rope.dimension_count", f"must be below the key length {key}")
        low_rank = "blk.0.attn_q_a.weight" in tensors
        return {
            **values,
            "num_key_value_heads": values["num_attention_heads"],
            "q_lora_rank": metadata.count("attention.q_lora_rank") if low_rank else None,
            "kv_lora_rank": metadata.count("attention.kv_lora_rank"),
            "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": key - rotated,
            "v_head_dim": value,
            "rope_parameters": _rope(metadata, values, _RAMP.get((layers, experts))),
            "first_k_dense_replace": metadata.count("leading_dense_block_count", 0, least=0),
            "n_routed_experts": experts,
            "num_experts_per_tok": top_k,
            "n_shared_experts": metadata.count("expert_shared_count", least=0),
            "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
            "n_group": groups,
            "topk_group": used_groups,
            "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        }

    def bind(
        self, parameter: str, shape: tuple[int, ...], config: Any, present: Present
    ) -> Binding | None:
        """As usual; where ``attn_kv_b`` is absent it is made of the two parts newer files hold."""
        if parameter.endswith(".kv_b_proj.weight"):
            whole, *pair = self.gguf_names(parameter, config.num_hidden_layers)
            if whole not in present and all(name in present for name in pair):
                heads = {"heads": config.num_attention_heads}
                return Binding(parameter, tuple(pair), "join_kv_b", heads)
            return Binding(parameter, (whole,)) if whole in present else None
        return super().bind(parameter, shape, config, present)

    def gguf_names(self, parameter: str, layers: int) -> tuple[str, ...]:
        """As usual, and the two parts of ``kv_b_proj``."""
        names = super().gguf_names(parameter, layers)
        if parameter.endswith(".kv_b_proj.weight"):
            block = block_of(parameter)
            return (*names, f"{block}.attn_k_b.weight", f"{block}.attn_v_b.weight")
        return names


class DeepseekV2(_Deepseek2):
    """``deepseek2`` files with a softmax router."""

    model_type = "deepseek_v2"
    architectures = ("DeepseekV2ForCausalLM",)
    gating = SOFTMAX

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read DeepseekV2Config's arguments."""
        values = super().config(metadata, tensors)
        if metadata.flag("expert_weights_norm", False):
            raise metadata.wrong(
                "expert_weights_norm", "must be false: transformers' DeepSeek-V2 does not normalise"
            )
        grouped = values["n_group"] > 1
        return {**values, "topk_method": "group_limited_greedy" if grouped else "greedy"}


class DeepseekV3(_Deepseek2):
    """``deepseek2`` files with a sigmoid router and its correction bias."""

    model_type = "deepseek_v3"
    architectures = ("DeepseekV3ForCausalLM",)
    other_model_types = ("kimi_k2",)
    spellings = ROUTER_BIAS
    gating = SIGMOID

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read DeepseekV3Config's arguments."""
        return {
            **super().config(metadata, tensors),
            "norm_topk_prob": metadata.flag("expert_weights_norm", True),
        }


def _rope(
    metadata: Metadata, values: dict[str, Any], ramp: tuple[float, float] | None
) -> dict[str, Any]:
    """YaRN with the scale of the reference.

    The file holds ``0.1 * mscale_all_dim``. All published models have ``mscale == mscale_all_dim``,
    so that the two cancel in the rotation and only the attention's scale is left.
    """
    rope: dict[str, Any] = values["rope_parameters"]
    if rope["rope_type"] != "yarn":
        return rope
    fast, slow = ramp or (32.0, 1.0)
    rope = {"beta_fast": fast, "beta_slow": slow, **rope}
    if metadata.has("rope.scaling.yarn_log_multiplier"):
        scale = round(metadata.number("rope.scaling.yarn_log_multiplier") * 10, 6)
        rope |= {"mscale": scale, "mscale_all_dim": scale}
    return rope
