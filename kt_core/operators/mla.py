"""``kt_core.MlaAttention``: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

The cache holds what the layer really has to remember of a token: the latent vector that keys and values
of all heads are made from, and the one rotated key they share. Attention over it has two forms that
compute the same. *Expanded* makes every head's keys and values from the latents first; *absorbed*
multiplies the queries by that matrix instead and attends to the latents as they are. Per query the
absorbed form does more work, but it never expands the history, so it is the one for few queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kt_core.errors import Problem
from kt_core.models.hf_attention import attend
from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext
from kt_core.plan.model import ModulePlan

_SCORES = 1 << 25
"""Scores held at once, over all heads; longer prompts are attended to in blocks of rows."""


class MlaAttention(Operator):
    """Stands for transformers' ``DeepseekV2Attention`` and ``DeepseekV3Attention``.

    The projections are the original's own, under their names, so that rules for them apply: packed
    weights stay packed in all of them but ``kv_b_proj``. That one is multiplied from both sides, once per
    head (queries from the left, latents from the right), and blocks run along one of the two only. It is
    kept once, dequantised in the model's dtype, and both forms read it where it lies: 34 MB a layer for
    DeepSeek-V3 in bfloat16, against 8 GB of experts.
    """

    q_proj: nn.Module
    q_a_proj: nn.Module
    q_a_layernorm: nn.Module
    q_b_proj: nn.Module
    kv_a_proj_with_mqa: nn.Module
    kv_a_layernorm: nn.Module
    kv_b_proj: nn.Linear
    o_proj: nn.Module

    def __init__(self, original: nn.Module, context: OperatorContext) -> None:
        super().__init__(original, context)
        for name, child in original.named_children():
            self.add_module(name, child)
        own: Any = original
        self.config = own.config
        self.layer_idx = int(own.layer_idx)
        self.is_causal = True
        self.scaling = float(own.scaling)
        self.num_heads = int(own.num_heads)
        self.kv_lora_rank = int(own.kv_lora_rank)
        self.qk_nope_head_dim = int(own.qk_nope_head_dim)
        self.qk_rope_head_dim = int(own.qk_rope_head_dim)
        self.v_head_dim = int(own.v_head_dim)
        self._halves = not getattr(self.config, "rope_interleave", True)
        limit = context.kwargs.get("decode_max_tokens")
        self._absorb_up_to = self.break_even() if limit is None else int(limit)
        if context.kwargs.get("absorb_for_prefill"):
            self._absorb_up_to = None
        self._rows = context.kwargs.get("chunck_size")

    @classmethod
    def check_plan(cls, module: ModulePlan, modules: Sequence[ModulePlan]) -> list[Problem]:
        """Say KT336 where ``kv_b_proj`` was given to a kernel or put elsewhere."""
        path = f"{module.path}.kv_b_proj"
        inner = next((m for m in modules if m.path == path), None)
        if inner is None or (inner.decode is None and inner.device == module.device):
            return []
        if inner.decode is not None:
            what = f"{module.operator} needs {path} in the model's dtype, but {inner.operator} takes it"
            way_out = r"leave it out of that rule: name: ^(?!.*kv_b_proj$)model\.layers\."
        else:
            what = f"{path} is on {inner.device}, its attention on {module.device}"
            way_out = f"put both on one device: generate_device: {module.device}"
        facts = (f"placed by: {inner.place}",) if inner.place else ()
        return [Problem("KT336", what, facts=facts, help=way_out)]

    def break_even(self) -> int | None:
        """Queries per call up to which the absorbed form does less work; ``None``: always.

        Per head and cached token, expanding costs ``rank * (nope + value)`` multiplications once, and
        each query ``nope + value`` afterwards, against ``2 * rank`` absorbed; the rotated part costs
        both the same.
        """
        expanded = self.qk_nope_head_dim + self.v_head_dim
        more = 2 * self.kv_lora_rank - expanded
        return None if more <= 0 else max(1, self.kv_lora_rank * expanded // more)

    def load(self, weights: ModuleWeights) -> None:
        """Nothing of its own to load: the projections are modules of the plan."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Any = None,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend from ``hidden_states`` ``(batch, n, hidden)`` to the cached tokens and themselves.

        ``cache`` (in older releases ``past_key_values``) takes latents ``(batch, 1, n, rank)`` as keys and
        rotated keys ``(batch, 1, n, rope)`` as values. ``attention_mask`` is boolean (true: visible) or
        added to the scores, ``(batch, 1, n, m)``; without one, causal.
        """
        batch, count, _ = hidden_states.shape
        query = self._query(hidden_states).view(batch, count, self.num_heads, -1).transpose(1, 2)
        plain, turning = torch.split(query, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        both = self.kv_a_proj_with_mqa(hidden_states)[:, None]
        latent, shared = torch.split(both, [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        latent = self.kv_a_layernorm(latent)
        turning, shared = self._rotated((turning, shared), position_embeddings)
        held = past_key_values if cache is None else cache
        if held is not None:
            latent, shared = held.update(latent, shared, self.layer_idx)
        if self._absorb_up_to is None or count <= self._absorb_up_to:
            output = self._absorbed(plain, turning, latent, shared, attention_mask)
        else:
            output = self._expanded(plain, turning, latent, shared, attention_mask)
        return self.o_proj(output.reshape(batch, count, -1)), None

    def _query(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.config.q_lora_rank is None:
            query: torch.Tensor = self.q_proj(hidden_states)
        else:
            query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        return query

    def _rotated(
        self, parts: tuple[torch.Tensor, torch.Tensor], angles: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate ``(batch, heads, n, rope)``; all first elements of pairs come before all second ones.

        That order is kept in the cache; queries and keys have the same, so products do not feel it.
        ``angles`` is cosine and sine ``(batch, n, rope)`` twice over, or complex ``(batch, n, rope / 2)``.
        """
        half = self.qk_rope_head_dim // 2
        if isinstance(angles, torch.Tensor):
            cosine, sine = angles.real, angles.imag
        else:
            cosine, sine = (part[..., :half] for part in angles)
        cosine, sine = cosine[:, None].to(parts[0].device), sine[:, None].to(parts[0].device)
        turned = []
        for part in parts:
            wide = part.to(cosine.dtype)
            if self._halves:
                first, second = wide[..., :half], wide[..., half:]
            else:
                first, second = wide[..., 0::2], wide[..., 1::2]
            pair = (first * cosine - second * sine, second * cosine + first * sine)
            turned.append(torch.cat(pair, -1).to(part.dtype))
        return turned[0], turned[1]

    def _expanded(
        self,
        plain: torch.Tensor,
        turning: torch.Tensor,
        latent: torch.Tensor,
        shared: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend with every head's own keys and values; return ``(batch, n, heads, value)``."""
        batch, _, length, _ = latent.shape
        both = self.kv_b_proj(latent[:, 0]).view(batch, length, self.num_heads, -1).transpose(1, 2)
        key, value = torch.split(both, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        key = torch.cat([key, shared.expand(-1, self.num_heads, -1, -1)], -1)
        return attend(self, torch.cat([plain, turning], -1), key, value, mask, self.scaling)

    def _absorbed(
        self,
        plain: torch.Tensor,
        turning: torch.Tensor,
        latent: torch.Tensor,
        shared: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend to the latents; return ``(batch, n, heads, value)``."""
        batch, heads, count, _ = plain.shape
        length = latent.shape[2]
        weight = self.kv_b_proj.weight.view(heads, -1, self.kv_lora_rank)
        to_key, to_value = torch.split(weight, [self.qk_nope_head_dim, self.v_head_dim], dim=1)
        # One row per head and query: all of them attend to the same latents.
        inner = torch.bmm(plain.transpose(0, 1).reshape(heads, batch * count, -1), to_key)
        inner = inner.view(heads, batch, count, -1).transpose(0, 1)
        output = plain.new_empty(batch, heads, count, self.kv_lora_rank)
        step = self._rows or max(1, _SCORES // (batch * heads * length))
        for start in range(0, count, step):
            rows = slice(start, start + step)
            scores = torch.baddbmm(
                torch.bmm(turning[:, :, rows].flatten(1, 2), shared[:, 0].mT),
                inner[:, :, rows].flatten(1, 2),
                latent[:, 0].mT,
                beta=self.scaling,
                alpha=self.scaling,
            ).view(batch, heads, -1, length)
            _hide(scores, mask, start, count)
            weights = torch.softmax(scores, -1, dtype=torch.float32).to(latent.dtype)
            mixed = torch.bmm(weights.flatten(1, 2), latent[:, 0])
            output[:, :, rows] = mixed.view(batch, heads, -1, self.kv_lora_rank)
        values = torch.bmm(output.transpose(0, 1).reshape(heads, batch * count, -1), to_value.mT)
        return values.view(heads, batch, count, -1).permute(1, 2, 0, 3)


def _hide(scores: torch.Tensor, mask: torch.Tensor | None, start: int, count: int) -> None:
    """Hide in ``scores`` ``(batch, heads, rows, m)`` what row ``start`` and those after it may not see."""
    rows, length = scores.shape[2:]
    if mask is not None:
        part = mask[:, :, start : start + rows, :length]
        if part.dtype is torch.bool:
            scores.masked_fill_(~part, float("-inf"))
        else:
            scores.add_(part)
    elif count > 1:
        # The rows are the last ones of a causal square: row i sees all tokens up to its own.
        seen = length - count + start
        later = torch.ones(rows, length, dtype=torch.bool, device=scores.device).triu_(seen + 1)
        scores.masked_fill_(later, float("-inf"))
