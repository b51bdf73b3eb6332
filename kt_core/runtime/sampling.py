"""How the next token is chosen. The filters are transformers' own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kt_core.errors import KernelError, UsageError


@dataclass(frozen=True)
class Sampling:
    """``temperature`` 0 means greedy; the other filters then have no effect."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_k", self.top_k, 1, 1 << 31),
            ("seed", self.seed, -(1 << 63), (1 << 63) - 1),
            ("top_p", self.top_p, 1e-9, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 1e-3, 100.0),
        )
        for name, value, least, most in checks:
            if value is not None and not least <= value <= most:
                raise UsageError.of(
                    "KT721", f"{name} must lie between {least:g} and {most:g}, got {value!r}"
                )


class Sampler:
    """Draws token ids from logits, with its own random state."""

    def __init__(self, sampling: Sampling) -> None:
        self._greedy = sampling.temperature == 0
        self._processors = _processors(sampling)
        self._generator = torch.Generator()
        if sampling.seed is not None:
            self._generator.manual_seed(sampling.seed)
        else:
            self._generator.seed()

    def __call__(self, tokens: torch.Tensor, logits: torch.Tensor) -> int:
        """Pick from ``logits`` ``(vocab,)`` after ``tokens`` ``(1, n)``.

        Raises:
            KernelError: KT504 if a logit is NaN or all are -inf.
        """
        scores = logits.float()[None]
        for processor in self._processors:
            scores = processor(tokens.to(scores.device), scores)
        # One NaN makes max return its place, so this catches every broken distribution. Both numbers
        # come in one copy: on a GPU each would be a wait of its own.
        value, place = scores[0].max(-1)
        largest, best = torch.stack((value.double(), place.double())).tolist()
        if not math.isfinite(largest):
            raise KernelError.of(
                "KT504",
                "the model's logits are not finite",
                facts=[f"{int(torch.isnan(logits).sum())} of {logits.numel()} are NaN"],
                help="try --dtype float32",
            )
        if self._greedy:
            return int(best)
        probabilities = torch.softmax(scores[0], -1).cpu()
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def _processors(sampling: Sampling) -> list[Any]:
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    chosen: list[Any] = []
    if sampling.repetition_penalty not in (None, 1.0):
        chosen.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature in (0, 1):
        pass
    else:
        chosen.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.temperature != 0:
        if sampling.top_k is not None:
            chosen.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p is not None and sampling.top_p < 1:
            chosen.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            chosen.append(MinPLogitsWarper(sampling.min_p))
    return chosen
