"""Calls that no prompt makes but that tell much: zeros alone, and every expert by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kt_core.plan.model import ModulePlan, Plan
from kt_core.verify import report as reports
from kt_core.verify.capture import Call, first_tensor
from kt_core.verify.compare import BROKEN, OK, Bound, Difference, difference, judge
from kt_core.verify.reference import Reference, StreamedExperts

Outcome = tuple[Difference, str, list[str]]

_BIAS_APART = 0.05
"""A bias is added after the product, so of zeros nothing but it is left, to the result's own rounding."""


class Probes:
    """``limit`` is how many experts of a layer are called by themselves; ``None``: all."""

    def __init__(self, reference: Reference, limit: int | None) -> None:
        self._reference = reference
        self._limit = limit

    def zero(
        self,
        own: nn.Module,
        planned: ModulePlan,
        calls: Sequence[Call],
        phase: str,
        device: str,
        plan: Plan,
    ) -> Outcome | None:
        """Of zeros, a linear layer must make its bias; returns only what is wrong."""
        given = first_tensor(calls[0].args) if calls else None
        made = first_tensor(calls[0].output) if calls else None
        if given is None or made is None:
            return None
        tokens = _tokens(own, phase)
        x = torch.zeros(1, tokens, given.shape[-1], dtype=given.dtype, device=device)
        found = own(x).cpu().float().reshape(tokens, -1)
        bias = self._reference.parameter(f"{planned.path}.bias", (found.shape[-1],))
        expected = torch.zeros_like(found) if bias is None else bias.expand_as(found)
        usual = float(made.float().square().mean().sqrt())
        size = max(float(expected.square().mean().sqrt()), 1e-3 * usual)
        apart = float((found - expected).square().mean().sqrt())
        if apart <= _BIAS_APART * size and torch.isfinite(found).all():
            return None
        notes = ["of zeros it does not make its bias"]
        if bias is None:
            notes = ["of zeros it makes something else than zeros, though it has no bias"]
        elif not found.any():
            notes = ["its bias is dropped"]
        return difference(found, expected), BROKEN, notes

    def experts(
        self,
        own: nn.Module,
        reference: StreamedExperts,
        calls: Sequence[Call],
        phase: str,
        device: str,
        bound: Bound,
    ) -> Outcome | None:
        """Every expert for one token each, with inputs that the layer really had."""
        usable = [c for c in calls if len(c.args) == 3 and first_tensor(c.args[:1]) is not None]
        if not usable:
            return None
        rows = torch.cat([c.args[0].reshape(-1, c.args[0].shape[-1]) for c in usable])
        count = reference.num_experts
        wanted = count if self._limit is None else min(count, self._limit)
        if wanted == 0:
            return None
        numbers = torch.linspace(0, count - 1, wanted).round().long()
        x = rows[torch.arange(len(numbers)) % len(rows)]
        index = numbers[:, None]
        weights = torch.ones(len(numbers), 1, dtype=calls[0].args[2].dtype)
        if phase == reports.PREFILL:
            # At least as many tokens as make a prompt of it.
            more = -(-_tokens(own, phase) // len(numbers))
            x, index, weights = (t.repeat(more, 1) for t in (x, index, weights))
            found = own(x.to(device), index.to(device), weights.to(device)).cpu().float()
        else:
            found = torch.cat(
                [
                    own(*(t[i : i + 1].to(device) for t in (x, index, weights))).cpu().float()
                    for i in range(len(x))
                ]
            )
        home = self._reference.device
        expected = reference(
            x.to(home, torch.float32), index.to(home), weights.to(home, torch.float32)
        ).cpu()
        apart = difference(found, expected)
        each = [difference(found[i : i + 1], expected[i : i + 1]) for i in range(len(numbers))]
        verdicts = [judge(one, bound) for one in each]
        wrong = [int(n) for n, v in zip(numbers, verdicts, strict=True) if v == BROKEN]
        verdict = judge(apart, bound)
        notes = []
        if wrong:
            verdict = BROKEN
            shown = ", ".join(map(str, wrong[:8])) + (", …" if len(wrong) > 8 else "")
            notes.append(f"{phase}: {len(wrong)} of {len(numbers)} experts are wrong: {shown}")
            notes += self._swapped(reference, x, index, weights, found, wrong)
        elif verdict != OK:
            notes.append(f"{phase}: all experts alike")
        return apart, verdict, notes

    def _swapped(
        self,
        reference: StreamedExperts,
        x: torch.Tensor,
        index: torch.Tensor,
        weights: torch.Tensor,
        found: torch.Tensor,
        wrong: Sequence[int],
    ) -> list[str]:
        """Whether the first wrong expert is right once gate and up change places."""
        number = wrong[0]
        row = int((index[:, 0] == number).nonzero()[0])
        module = reference.some([number])
        fused = module._parameters.get("gate_up_proj")
        if fused is None or self._reference.columns:
            return []
        half = fused.shape[1] // 2
        module._parameters["gate_up_proj"] = nn.Parameter(fused.roll(half, 1), requires_grad=False)
        home = self._reference.device
        y = module(
            x[row : row + 1].to(home, torch.float32),
            torch.zeros(1, 1, dtype=torch.long, device=home),
            weights[row : row + 1].to(home, torch.float32),
        )
        if difference(found[row : row + 1], y).relative < 0.1:
            return ["gate and up have changed places"]
        return []


def _tokens(own: nn.Module, phase: str) -> int:
    """How many tokens make the phase's kernel run."""
    if phase == reports.DECODE:
        return 1
    return int(getattr(own, "decode_max_tokens", 1)) + 1
