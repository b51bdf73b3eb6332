"""Inputs for contract tests: the sizes and layouts at which operators go wrong."""

from __future__ import annotations

from typing import Any

import torch

TOKENS = (1, 2, 7, 33)
"""Decode, the least prefill, an odd number, and one past a power of two."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that activations may have."""

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""What rounding a result to the activations' dtype may add to an operator's own tolerance."""


def hidden_states(
    tokens: int, hidden: int, dtype: torch.dtype = torch.float32, seed: int = 1
) -> torch.Tensor:
    """``(1, tokens, hidden)`` of normal values, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed + 31 * tokens + hidden)
    return torch.randn(1, tokens, hidden, generator=generator).to(dtype)


def attention_inputs(
    config: Any, tokens: int, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """What a decoder layer of transformers calls its attention with, for a prompt of ``tokens``.

    ``config`` is a transformers configuration; the rotary embedding is computed as Llama's.
    """
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    theta = config.rope_parameters["rope_theta"]
    frequencies = 1 / theta ** (torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.arange(tokens).double()[:, None] * frequencies
    both = torch.cat((angles, angles), dim=-1)[None]
    return {
        "hidden_states": hidden_states(tokens, config.hidden_size, dtype),
        "position_embeddings": (both.cos().to(dtype), both.sin().to(dtype)),
        "attention_mask": None,
    }
