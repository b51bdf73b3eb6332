"""SmallThinker, which transformers has no class for, built of transformers' parts.

Reference: "SmallThinker: A Family of Efficient Large Language Models Natively Trained for Local
Deployment" (arXiv 2507.20984) and the fields of the published ``config.json``. What sets it apart: the
router reads what *enters* the layer, before attention; experts are ReLU-gated; every fourth layer of the
large model attends to all tokens without rotation, the others to a window with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from kt_core.models.hf_attention import attend
from kt_core.models.hf_cache import appending_cache

MODEL_TYPE = "smallthinker"
FULL, SLIDING = "full_attention", "sliding_attention"


class SmallThinkerConfig(PreTrainedConfig):  # type: ignore[misc]
    """The fields that the published configurations have.

    ``rope_layout`` and ``sliding_window_layout`` hold 1 for each layer that rotates, or attends to a window
    of ``sliding_window_size`` tokens.
    """

    model_type = MODEL_TYPE
    attribute_map = {  # noqa: RUF012 - read as a class attribute
        "num_experts": "moe_num_primary_experts",
        "num_experts_per_tok": "moe_num_active_primary_experts",
        "moe_intermediate_size": "moe_ffn_hidden_size",
        "intermediate_size": "moe_ffn_hidden_size",
        "sliding_window": "sliding_window_size",
    }

    vocab_size: int = 151936
    hidden_size: int = 1536
    num_hidden_layers: int = 32
    num_attention_heads: int = 12
    num_key_value_heads: int = 2
    head_dim: int = 128
    hidden_act: str = "relu"
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    rope_parameters: dict[str, Any] | None = None
    rope_layout: list[int] | None = None
    sliding_window_layout: list[int] | None = None
    sliding_window_size: int | None = 4096
    moe_num_primary_experts: int = 32
    moe_num_active_primary_experts: int = 4
    moe_ffn_hidden_size: int = 768
    moe_primary_router_apply_softmax: bool = False
    layer_types: list[str] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in layouts that are left out: rotation everywhere, windows nowhere."""
        count = self.num_hidden_layers
        self.rope_layout = self.rope_layout or [1] * count
        self.sliding_window_layout = self.sliding_window_layout or [0] * count
        self.layer_types = [
            SLIDING if windowed else FULL for windowed in self.sliding_window_layout
        ]
        super().__post_init__(**kwargs)


class SmallThinkerAttention(nn.Module):
    """Grouped-query attention, rotated or not, over all tokens or a window."""

    def __init__(self, config: SmallThinkerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.num_key_value_groups = heads // kv_heads
        self.scaling = config.head_dim**-0.5
        self.is_causal = True
        self.rotates = bool((config.rope_layout or [])[layer_idx])
        windowed = (config.layer_types or [])[layer_idx] == SLIDING
        self.sliding_window = config.sliding_window_size if windowed else None
        width = config.hidden_size
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend from ``hidden_states`` ``(batch, n, hidden)``."""
        shape = hidden_states.shape[:-1]
        query, key, value = (
            layer(hidden_states).view(*shape, -1, self.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotates:
            query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        output = attend(self, query, key, value, attention_mask, self.scaling)
        return self.o_proj(output.reshape(*shape, -1)), None


class SmallThinkerRouter(nn.Module):
    """Chooses experts by logits; weights are the chosen ones' softmax, or their sigmoids' shares."""

    def __init__(self, config: SmallThinkerConfig) -> None:
        super().__init__()
        self.top_k = config.moe_num_active_primary_experts
        self.softmax = config.moe_primary_router_apply_softmax
        self.weight = nn.Parameter(torch.empty(config.moe_num_primary_experts, config.hidden_size))

    def forward(
        self, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits ``(tokens, experts)``, weights and ids ``(tokens, top_k)``."""
        logits = functional.linear(hidden_states, self.weight)
        chosen, index = torch.topk(logits.float(), self.top_k, dim=-1)
        if self.softmax:
            weights = torch.softmax(chosen, -1)
        else:
            weights = torch.sigmoid(chosen)
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(hidden_states.dtype), index


class SmallThinkerExperts(nn.Module):
    """ReLU-gated experts, ``gate`` above ``up`` in one tensor."""

    def __init__(self, config: SmallThinkerConfig) -> None:
        super().__init__()
        experts, width, inner = (
            config.moe_num_primary_experts,
            config.hidden_size,
            config.moe_ffn_hidden_size,
        )
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(experts, width, inner))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sum over each token's experts, ``(tokens, hidden)``."""
        output = torch.zeros_like(hidden_states)
        for expert in torch.unique(top_k_index).tolist():
            token, position = torch.where(top_k_index == expert)
            both = functional.linear(hidden_states[token], self.gate_up_proj[expert])
            gate, up = both.chunk(2, dim=-1)
            y = functional.linear(functional.relu(gate) * up, self.down_proj[expert])
            output.index_add_(0, token, y * top_k_weights[token, position, None])
        return output


class SmallThinkerMoeBlock(nn.Module):
    """Routes by what entered the layer, computes on what attention left."""

    def __init__(self, config: SmallThinkerConfig) -> None:
        super().__init__()
        self.primary_router = SmallThinkerRouter(config)
        self.experts = SmallThinkerExperts(config)

    def forward(self, router_input: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map ``hidden_states`` ``(batch, n, hidden)``."""
        width = hidden_states.shape[-1]
        _, weights, index = self.primary_router(router_input.reshape(-1, width))
        output: torch.Tensor = self.experts(hidden_states.reshape(-1, width), index, weights)
        return output.view(hidden_states.shape)


class SmallThinkerDecoderLayer(nn.Module):
    """Attention and experts, each after a norm and around a residual."""

    def __init__(self, config: SmallThinkerConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = SmallThinkerAttention(config, layer_idx)
        self.block_sparse_moe = SmallThinkerMoeBlock(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Map ``(batch, n, hidden)``."""
        attended, _ = self.self_attn(self.input_layernorm(hidden_states), **kwargs)
        after = hidden_states + attended
        output: torch.Tensor = after + self.block_sparse_moe(
            hidden_states, self.post_attention_layernorm(after)
        )
        return output


class SmallThinkerPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What transformers wants to know."""

    config_class = SmallThinkerConfig
    config: SmallThinkerConfig
    base_model_prefix = "model"
    _no_split_modules = ["SmallThinkerDecoderLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True


class SmallThinkerModel(SmallThinkerPreTrainedModel):
    """The decoder stack."""

    def __init__(self, config: SmallThinkerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            [SmallThinkerDecoderLayer(config, index) for index in range(config.num_hidden_layers)]
        )
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Map token ids ``(batch, n)``, or their embeddings, to ``(batch, n, hidden)`` and the cache."""
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = appending_cache(self.config)
        seen = cache.get_seq_length() if cache is not None else 0
        positions = (torch.arange(hidden.shape[1], device=hidden.device) + seen)[None]
        masks = {
            kind: make(self.config, hidden, attention_mask, cache, positions)
            for kind, make in (
                (FULL, create_causal_mask),
                (SLIDING, create_sliding_window_causal_mask),
            )
            if kind in (self.config.layer_types or [])
        }
        angles = self.rotary_emb(hidden, positions)
        for layer, kind in zip(self.layers, self.config.layer_types or [], strict=True):
            hidden = layer(
                hidden, position_embeddings=angles, attention_mask=masks[kind], cache=cache
            )
        return self.norm(hidden), cache


class SmallThinkerForCausalLM(SmallThinkerPreTrainedModel):
    """The stack and its head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SmallThinkerConfig) -> None:
        super().__init__(config)
        self.model = SmallThinkerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Map token ids ``(batch, n)`` to logits of the last ``logits_to_keep`` tokens (0: all)."""
        hidden, cache = self.model(
            input_ids, attention_mask=attention_mask, cache=cache, use_cache=use_cache
        )
        return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, -logits_to_keep:]))


def register() -> None:
    """Make the classes known to transformers' Auto classes. Repeated calls do nothing."""
    AutoConfig.register(MODEL_TYPE, SmallThinkerConfig, exist_ok=True)
    AutoModelForCausalLM.register(SmallThinkerConfig, SmallThinkerForCausalLM, exist_ok=True)
