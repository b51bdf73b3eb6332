"""The two models as wholes: hidden states behind each layer, and the logits at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from kt_core.verify.capture import Call, first_tensor
from kt_core.verify.compare import difference
from kt_core.verify.report import Answer, Drift


def drift_of(layer: int, calls: Sequence[Call], hidden: torch.Tensor, split: int) -> Drift:
    """How far a layer's outputs are from ``hidden`` ``(1, n, width)``, the reference's own.

    The first ``split`` tokens are the prompt's.
    """
    outputs = [t for call in calls if (t := first_tensor(call.output)) is not None]
    found = torch.cat([t.to("cpu", torch.float32) for t in outputs], dim=1)
    wanted = hidden.cpu()
    prefill = difference(found[:, :split], wanted[:, :split]).relative
    return Drift(layer, prefill, difference(found[:, split:], wanted[:, split:]).relative)


def answer_of(found: torch.Tensor, expected: torch.Tensor, tokens: torch.Tensor) -> Answer:
    """Compare logits ``(1, n, vocabulary)`` of ``tokens`` ``(1, n)``."""

    def loss(logits: torch.Tensor) -> float:
        return float(nn.functional.cross_entropy(logits[0, :-1].float(), tokens[0, 1:]))

    same = (found.argmax(-1) == expected.argmax(-1)).float().mean()
    chance = math.log(found.shape[-1])
    apart = difference(found, expected).relative
    return Answer(apart, float(same), loss(found), loss(expected), chance)
