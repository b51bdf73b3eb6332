"""Attention on a CPU in bfloat16, faster than torch's fused kernel and no less exact than eager.

torch's fused CPU attention converts bfloat16 on the way: at 4,096 cached tokens one decode step of a
32-head layer takes 11.6 ms there and 0.5 ms as two batched matrix products, and a prompt of 512 tokens
takes 24 ms against 7 ms (benchmarks/attention.py). Everything this function does not cover goes to
transformers' own ``sdpa``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "kt_cpu"

_BLOCK = 128
"""Query rows at once: the scores of a block stay in cache, and keys after it are skipped."""

# Arguments of other attention variants; with any of them transformers' own function is called.
_OTHERS = ("softcap", "s_aux", "position_bias", "head_mask")


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend ``query`` ``(1, heads, n, dim)`` to ``key`` and ``value`` ``(1, kv_heads, m, dim)``.

    Returns ``(1, n, heads, dim)``, in the inputs' dtype.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    covered = (
        query.dtype is torch.bfloat16
        and query.device.type == "cpu"
        and query.shape[0] == 1
        and not dropout
        and (attention_mask is None or attention_mask.dtype is torch.bool)
        and (causal or query.shape[2] == 1)
        and all(kwargs.get(name) is None for name in _OTHERS)
    )
    if not covered:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **kwargs,
        )
        return result
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return _blocked(query, key[0], value[0], attention_mask, scale).transpose(1, 2), None


def _blocked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    _, heads, rows, dim = query.shape
    kv_heads, columns, _ = key.shape
    group = heads // kv_heads
    query = query.reshape(kv_heads, group, rows, dim) * scale
    output = query.new_empty(kv_heads, group, rows, value.shape[-1])
    transposed = key.transpose(-1, -2)
    for start in range(0, rows, _BLOCK):
        stop = min(rows, start + _BLOCK)
        # Without a mask the rows are the last ones of a causal square; later keys are not visible.
        end = columns - rows + stop if mask is None else columns
        block = query[:, :, start:stop].reshape(kv_heads, -1, dim)
        scores = torch.bmm(block, transposed[:, :, :end]).view(kv_heads, group, stop - start, end)
        if mask is not None:
            # (1, 1 or heads, rows, columns); broadcast over the heads of a group alike.
            hidden = ~mask[0, :, start:stop, :end]
            shape = (1, 1) if hidden.shape[0] == 1 else (kv_heads, group)
            scores.masked_fill_(hidden.view(*shape, stop - start, end), float("-inf"))
        elif stop - start > 1:
            width = stop - start
            later = torch.ones(width, width, dtype=torch.bool).triu_(1)
            scores[..., end - width :].masked_fill_(later, float("-inf"))
        weights = torch.softmax(scores, -1).view(kv_heads, -1, end)
        output[:, :, start:stop] = torch.bmm(weights, value[:, :end]).view(
            kv_heads, group, stop - start, -1
        )
    return output.view(1, heads, rows, -1)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Attend by the function that the model's configuration names; see :func:`attention`."""
    name = module.config._attn_implementation  # type: ignore[union-attr]
    function = ALL_ATTENTION_FUNCTIONS.get_interface(name, sdpa_attention_forward)
    output: torch.Tensor = function(
        module, query, key, value, attention_mask, dropout=0.0, scaling=scaling
    )[0]
    return output


def use_cpu_attention(model: Any) -> bool:
    """Let ``model`` attend through :func:`attention` if it uses ``sdpa`` now; return whether it does.

    CPUs without bfloat16 instructions keep ``sdpa``: their batched bfloat16 products are slow.
    """
    if model.config._attn_implementation != "sdpa" or not _has_bfloat16():
        return False
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return True


def _has_bfloat16() -> bool:
    from kt_core.registry.environment import probe_env

    flags = probe_env("cpu").cpu_flags
    return bool({"avx512_bf16", "amx_bf16"} & flags)
