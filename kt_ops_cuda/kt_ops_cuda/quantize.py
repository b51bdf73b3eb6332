"""Quantising float weights, and what it costs: plain torch on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kt_ops_cuda.layout import FORMATS, Format


@dataclass(frozen=True)
class Quantised:
    """Integers and what scales them: ``weight = scale * q + offset`` per row and group.

    ``q`` is ``(N, K)`` uint8; ``scale`` and ``offset`` are ``(N, groups)`` float32 holding values
    that float16 represents. ``offset`` is ``None`` where it is the format's own multiple of the scale.
    """

    q: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    fmt: Format

    def dequantize(self) -> torch.Tensor:
        """Return ``(N, K)`` float32."""
        columns = self.q.shape[1]
        zero = 8.0 if self.fmt.bits == 4 else 128.0
        offset = -zero * self.scale if self.offset is None else self.offset
        group = self.fmt.group
        scale = self.scale.repeat_interleave(group, 1)[:, :columns]
        return self.q.float() * scale + offset.repeat_interleave(group, 1)[:, :columns]


@dataclass(frozen=True)
class Report:
    """How far quantised weights are from the stored ones.

    ``relative`` is ``norm(q - w) / norm(w)``, ``largest`` the greatest ``abs(q - w)``.
    """

    relative: float
    largest: float

    def __str__(self) -> str:
        return f"relative error {self.relative:.2%}, largest {self.largest:.2g}"


def compare(quantised: torch.Tensor, weight: torch.Tensor) -> Report:
    """Measure the error of one weight."""
    difference = quantised.double() - weight.double()
    size = float(weight.double().norm())
    relative = float(difference.norm()) / size if size > 0 else 0.0
    return Report(relative, float(difference.abs().max()) if difference.numel() else 0.0)


def combined(reports: list[Report]) -> Report:
    """Error over several weights of about equal norm: root mean square, and the largest."""
    mean = math.sqrt(sum(r.relative**2 for r in reports) / len(reports))
    return Report(mean, max(r.largest for r in reports))


def format_for(bits: int, group: int, symmetric: bool) -> Format | None:
    """The packed format for these options; ``None`` where there is none.

    Groups of 64 and 4 bits are stored as two of 32; whole rows as groups of 128 of equal scale.
    """
    if bits == 8:
        return FORMATS["w8_g32" if group in (32, 64) else "w8_g128"] if symmetric else None
    if group in (32, 64):
        return FORMATS["w4_g32_offset"]
    return FORMATS["w4_g128" if symmetric else "w4_g128_offset"]


def _symmetric(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Scales for groups ``(..., size)``: the least squared error among a few shrunken ranges."""
    half = 1 << (bits - 1)
    # The value of largest magnitude takes the end of the range that has one more step.
    index = x.abs().argmax(-1, keepdim=True)
    extreme = x.gather(-1, index)
    best_error = torch.full_like(extreme, math.inf)
    best = torch.zeros_like(extreme)
    for shrink in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75) if bits == 4 else (1.0,):
        scale = (extreme * (shrink / -half)).half().float()
        inverse = torch.where(scale == 0, 0, 1 / scale)
        q = (x * inverse).round().clamp(-half, half - 1)
        error = ((q * scale - x) ** 2).sum(-1, keepdim=True)
        better = error < best_error
        best = torch.where(better, scale, best)
        best_error = torch.where(better, error, best_error)
    return best


def quantise(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> Quantised:
    """Quantise ``(N, K)`` float values.

    ``group`` is 32, 64, 128 or -1 for whole rows. Values must be finite.
    """
    fmt = format_for(bits, group, symmetric)
    if fmt is None:
        raise ValueError("8 bits are symmetric only")
    rows, columns = weight.shape
    size = columns if group == -1 else group
    groups = -(-columns // size)
    x = weight.float()
    if columns % size:
        x = torch.nn.functional.pad(x, (0, groups * size - columns))
    x = x.view(rows, groups, size)
    if symmetric:
        scale = _symmetric(x, bits)
        offset = -float(1 << (bits - 1)) * scale
    else:
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        scale = ((high - low) / 15).half().float()
        offset = low.half().float()
    inverse = torch.where(scale == 0, 0, 1 / scale)
    q = ((x - offset) * inverse).round().clamp(0, (1 << bits) - 1).to(torch.uint8)
    q = q.view(rows, -1)[:, :columns].contiguous()
    # Bring scales to the format's own groups.
    wanted = -(-columns // fmt.group)
    spread = torch.arange(wanted, device=weight.device) * fmt.group // size
    keeps_offset = fmt.entry_bytes == 4
    return Quantised(
        q,
        scale.squeeze(-1)[:, spread],
        offset.squeeze(-1)[:, spread] if keeps_offset else None,
        fmt,
    )
