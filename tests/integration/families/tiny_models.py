"""Tiny random models of every family, small enough to build, write and load in a moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kt_core.models.hf import make_known

from .gguf_of_model import Style

_BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_MOE = _BASE | {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MLA = _MOE | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


@dataclass(frozen=True)
class Tiny:
    """One case: a transformers configuration and how its file is written."""

    id: str
    gguf: str
    model_type: str
    options: dict[str, Any]
    style: Style = field(default_factory=Style)

    def __str__(self) -> str:
        return self.id

    @property
    def quantization(self) -> str:
        """The block format of its quantised file."""
        return "MXFP4" if self.model_type == "gpt_oss" else "Q8_0"

    def wide(self) -> Tiny:
        """The same with all widths that matrices are multiplied along a block of 256 or more."""
        widths = {key: max(256, self.options[key]) for key in _WIDTHS & self.options.keys()}
        return replace(self, options=self.options | {k: v for k, v in widths.items() if v})

    def build(self, *, exact: bool | float = False, seed: int = 0) -> Any:
        """Return the float32 model, random but for its structure.

        ``exact``: matrices hold -s, 0 and s only, which Q8_0 and MXFP4 store without loss however
        the blocks fall, so that a quantised file must give the same logits as the model; a number is
        the s to take.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        make_known(self.model_type)
        config = AutoConfig.for_model(self.model_type, **self.options)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(seed)
        scale = EXACT[self.quantization] if exact is True else exact or None
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name != "lm_head.weight" or not config.tie_word_embeddings:
                    tensor.copy_(_values(name, tensor, scale, generator))
        return model


_WIDTHS = {
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "moe_ffn_hidden_size",
    "shared_expert_intermediate_size",
    "kv_lora_rank",
}

# 127 / 2**n: the scale of a Q8_0 block is then a power of two. MXFP4 has powers of two only.
EXACT = {"Q8_0": 127 / 1024, "MXFP4": 0.125}


def _values(
    name: str, like: torch.Tensor, scale: float | None, generator: torch.Generator
) -> torch.Tensor:
    random = torch.randn(like.shape, generator=generator)
    if name.endswith("A_log"):
        return random.mul(0.5)
    if like.dim() == 1:
        # Multiples of 1/128, so that adding one and taking it away loses nothing.
        return (random * 0.2 * 128).round() / 128 + (0.5 if name.endswith("norm.weight") else 0.0)
    if scale is not None:
        return (random.sign() * (random.abs() > 0.5)) * scale
    return random * 0.15


def _case(id: str, gguf: str, model_type: str, options: dict[str, Any], **style: Any) -> Tiny:
    return Tiny(
        id, gguf, model_type, {"rope_parameters": dict(_DEFAULT_ROPE)} | options, Style(**style)
    )


_QWEN2_MOE = _MOE | {
    "num_experts": 6,
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": False,
    "intermediate_size": 128,
}
_V2 = _MLA | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "topk_method": "greedy"}
_V3 = _MLA | {"q_lora_rank": 32, "n_group": 4, "topk_group": 2, "norm_topk_prob": True}
_GLM = _MOE | {
    "head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "num_hidden_layers": 3,
    "n_group": 1,
    "topk_group": 1,
    "rope_parameters": _DEFAULT_ROPE | {"partial_rotary_factor": 0.5},
}
_GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_GEMMA = _BASE | {
    "head_dim": 32,
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "query_pre_attn_scalar": 32,
    "tie_word_embeddings": True,
}
_NEXT = _MOE | {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "num_experts": 4,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "rope_parameters": _DEFAULT_ROPE | {"partial_rotary_factor": 0.25},
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GPT_OSS = _BASE | {
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}
_MINIMAX = _BASE | {
    "head_dim": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "rope_parameters": _DEFAULT_ROPE | {"partial_rotary_factor": 0.5},
}
_SMALLTHINKER = {key: _BASE[key] for key in _BASE if key != "intermediate_size"} | {
    "num_hidden_layers": 5,
    "head_dim": 32,
    "moe_num_primary_experts": 6,
    "moe_num_active_primary_experts": 2,
    "moe_ffn_hidden_size": 32,
}

CASES = (
    _case("llama", "llama", "llama", _BASE | {"head_dim": 16}),
    _case("llama-bias", "llama", "llama", _BASE | {"attention_bias": True, "mlp_bias": True}),
    _case("llama-3.1-rope", "llama", "llama", _BASE | {"rope_parameters": _LLAMA3_ROPE}),
    _case("internlm2", "internlm2", "llama", _BASE | {"head_dim": 16}),
    _case("mistral", "llama", "mistral", _BASE | {"sliding_window": None, "head_dim": 32}),
    _case("qwen2", "qwen2", "qwen2", _BASE | {"tie_word_embeddings": True}),
    _case("qwen3", "qwen3", "qwen3", _BASE | {"head_dim": 32}),
    _case("qwen2-moe", "qwen2moe", "qwen2_moe", _QWEN2_MOE),
    _case("qwen2-moe-old", "qwen2moe", "qwen2_moe", _QWEN2_MOE, old_keys=True),
    _case(
        "qwen3-moe",
        "qwen3moe",
        "qwen3_moe",
        _MOE | {"num_experts": 6, "head_dim": 32, "norm_topk_prob": True},
    ),
    _case(
        "qwen3-moe-merged",
        "qwen3moe",
        "qwen3_moe",
        _MOE | {"num_experts": 6, "head_dim": 32, "norm_topk_prob": True},
        experts="merged",
    ),
    _case("mixtral", "llama", "mixtral", _BASE | {"num_local_experts": 4, "head_dim": 16}),
    _case(
        "mixtral-old",
        "llama",
        "mixtral",
        _BASE | {"num_local_experts": 4, "head_dim": 16},
        experts="each",
    ),
    _case("deepseek-v2-lite", "deepseek2", "deepseek_v2", _V2 | {"rope_parameters": _YARN}),
    _case(
        "deepseek-v2-lite-old",
        "deepseek2",
        "deepseek_v2",
        _V2 | {"rope_parameters": _YARN},
        kv_b="whole",
        old_keys=True,
    ),
    _case(
        "deepseek-v2",
        "deepseek2",
        "deepseek_v2",
        _V2
        | {
            "rope_parameters": _YARN,
            "q_lora_rank": 32,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
        },
        kv_b="whole",
    ),
    _case("deepseek-v3", "deepseek2", "deepseek_v3", _V3 | {"rope_parameters": _YARN}),
    _case(
        "deepseek-v3-old",
        "deepseek2",
        "deepseek_v3",
        _V3 | {"rope_parameters": _YARN, "n_group": 1, "topk_group": 1},
        kv_b="whole",
        router_bias="",
        old_keys=True,
    ),
    _case("deepseek-v3-flat", "deepseek2", "deepseek_v3", _V3, kv_b="flat"),
    _case(
        "moonlight",
        "deepseek2",
        "deepseek_v3",
        _V3 | {"q_lora_rank": None, "n_group": 1, "topk_group": 1},
    ),
    _case(
        "kimi-k2",
        "deepseek2",
        "deepseek_v3",
        _V3
        | {
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "rope_parameters": _YARN | {"beta_fast": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    _case(
        "glm-4.5",
        "glm4moe",
        "glm4_moe",
        _GLM | {"attention_bias": True, "use_qk_norm": True},
        ahead=True,
    ),
    _case("glm-4.5-air", "glm4moe", "glm4_moe", _GLM | {"attention_bias": True}),
    _case("gpt-oss", "gpt-oss", "gpt_oss", _GPT_OSS),
    _case("gemma-3", "gemma3", "gemma3_text", _GEMMA | {"rope_parameters": _GEMMA_ROPE}),
    _case(
        "gemma-3-1b",
        "gemma3",
        "gemma3_text",
        _GEMMA
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": _DEFAULT_ROPE,
            }
        },
        old_keys=True,
    ),
    _case("qwen3-next", "qwen3next", "qwen3_next", _NEXT),
    _case("qwen3-next-old", "qwen3next", "qwen3_next", _NEXT, qkvz="whole"),
    _case("minimax-m2", "minimax-m2", "minimax_m2", _MINIMAX),
    _case(
        "smallthinker-21b",
        "smallthinker",
        "smallthinker",
        _SMALLTHINKER
        | {
            "rope_layout": [0, 1, 1, 1, 0],
            "sliding_window_layout": [0, 1, 1, 1, 0],
            "sliding_window_size": 8,
        },
    ),
    _case(
        "smallthinker-4b",
        "smallthinker",
        "smallthinker",
        _SMALLTHINKER
        | {
            "sliding_window_size": None,
            "moe_primary_router_apply_softmax": True,
            "tie_word_embeddings": True,
        },
    ),
)
