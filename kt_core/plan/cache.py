"""How much memory the key/value cache will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kt_core.plan.model import CachePlan, ModulePlan


def values_per_token(config: Any) -> int:
    """Cached values per token and layer."""
    heads = int(config.num_attention_heads)
    if getattr(config, "kv_lora_rank", None):
        # Latent attention: what all heads are expanded from, and the rotated key that they share.
        return int(config.kv_lora_rank) + int(config.qk_rope_head_dim)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * kv_heads * head_dim


def plan_cache(
    config: Any, modules: Sequence[ModulePlan], context: int, bytes_each: int, default: str
) -> CachePlan:
    """Estimate the cache for ``context`` tokens, each layer's share where its keys are computed."""
    layers = int(config.num_hidden_layers)
    each = values_per_token(config) * bytes_each
    devices = {
        module.path.split(".")[2]: module.decode.device if module.decode else module.device
        for module in modules
        if module.path.startswith("model.layers.") and ".self_attn." in module.path
    }
    shares: dict[str, int] = {}
    for layer in range(layers):
        device = devices.get(str(layer), default)
        shares[device] = shares.get(device, 0) + each * context
    return CachePlan(context, each * layers, shares)
