"""Qwen3-Next: three linear-attention layers to each full one."""

from __future__ import annotations

from typing import Any, ClassVar

from kt_core.models.binding import Binding
from kt_core.models.families.common import (
    dense_config,
    head_dim,
    partial_rotary,
    routed_experts,
)
from kt_core.models.family import Family, Present
from kt_core.models.metadata import Metadata
from kt_core.models.names import Spellings, block_of


class Qwen3Next(Family):
    """``qwen3next`` files: gated delta rule, stacked experts, a shared expert behind a gate."""

    gguf = "qwen3next"
    model_type = "qwen3_next"
    architectures = ("Qwen3NextForCausalLM",)
    spellings: ClassVar[Spellings] = {
        "linear_attn.A_log": ("ssm_a",),
        "linear_attn.dt_bias": ("ssm_dt.bias",),
    }

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Read Qwen3NextConfig's arguments."""
        experts, top_k = routed_experts(metadata)
        values = dense_config(metadata, tensors)
        width = head_dim(metadata, 256)
        values["rope_parameters"]["partial_rotary_factor"] = partial_rotary(
            metadata, width, width // 4
        )
        value_heads = metadata.count("ssm.time_step_rank")
        inner = metadata.count("ssm.inner_size")
        if inner % value_heads:
            raise metadata.wrong("ssm.inner_size", f"must be a multiple of {value_heads} heads")
        layers = values["num_hidden_layers"]
        return {
            **values,
            "head_dim": width,
            "layer_types": [
                "linear_attention" if f"blk.{i}.ssm_a" in tensors else "full_attention"
                for i in range(layers)
            ],
            "linear_conv_kernel_dim": metadata.count("ssm.conv_kernel"),
            "linear_key_head_dim": metadata.count("ssm.state_size"),
            "linear_num_key_heads": metadata.count("ssm.group_count"),
            "linear_num_value_heads": value_heads,
            "linear_value_head_dim": inner // value_heads,
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "moe_intermediate_size": metadata.count("expert_feed_forward_length"),
            "shared_expert_intermediate_size": metadata.count("expert_shared_feed_forward_length"),
            "norm_topk_prob": metadata.flag("expert_weights_norm", True),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }

    def transform(self, parameter: str, config: Any) -> tuple[str, dict[str, Any]]:
        """Norms are stored with their offset, the decay as it is used."""
        if parameter.endswith(".A_log"):
            return "log_of_negative", {}
        if parameter.endswith("norm.weight") and not parameter.endswith("linear_attn.norm.weight"):
            return "subtract_one", {}
        return "as_is", {}

    def bind(
        self, parameter: str, shape: tuple[int, ...], config: Any, present: Present
    ) -> Binding | None:
        """As usual, with the projection that newer files split put together."""
        if parameter.endswith(".linear_attn.in_proj_qkvz.weight"):
            block = block_of(parameter)
            pair = (f"{block}.attn_qkv.weight", f"{block}.attn_gate.weight")
            if all(name in present for name in pair):
                heads = config.linear_num_key_heads
                value_rows = config.linear_num_value_heads * config.linear_value_head_dim // heads
                return Binding(
                    parameter,
                    pair,
                    "join_qkvz",
                    {
                        "key_heads": heads,
                        "key_dim": config.linear_key_head_dim,
                        "value_dim": value_rows,
                    },
                )
        return super().bind(parameter, shape, config, present)

    def gguf_names(self, parameter: str, layers: int) -> tuple[str, ...]:
        """As usual, and the two halves of the split projection."""
        names = super().gguf_names(parameter, layers)
        if parameter.endswith(".linear_attn.in_proj_qkvz.weight"):
            block = block_of(parameter)
            return (f"{block}.attn_qkv.weight", f"{block}.attn_gate.weight", *names)
        return names
