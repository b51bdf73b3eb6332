"""What a verification found, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kt_core.verify.compare import BROKEN, OK, SUSPECT, VERDICTS

FORMAT = 1
"""Version of the JSON form."""

PREFILL, DECODE, WEIGHTS, LOADED, ROUTED, REFERENCE = (
    "prefill",
    "decode",
    "weights",
    "loaded",
    "experts",
    "checkpoint",
)
"""What was compared: results of the two phases; what the adapter makes of the file; what a module
holds after loading; every expert called by itself; the file against the original checkpoint."""


@dataclass(frozen=True)
class Finding:
    """One comparison of one module.

    ``relative`` is what the verdict goes by, ``bound`` what is allowed for the reason ``why``.
    """

    module: str
    class_name: str
    operator: str
    what: str
    relative: float
    worst: float
    bound: float
    why: str
    verdict: str
    notes: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    """Broken modules inside this one, which explain it."""


@dataclass(frozen=True)
class Drift:
    """How far the plan's hidden states have come from the reference's behind a layer."""

    layer: int
    prefill: float
    decode: float


@dataclass(frozen=True)
class Answer:
    """The logits: their difference, and how often both prefer the same token.

    The losses say how well each predicts the prompt, in nats per token; ``chance`` is what guessing
    gives.
    """

    relative: float
    same_choice: float
    loss: float
    reference_loss: float
    chance: float


@dataclass
class Report:
    """Everything ``kt verify`` says."""

    architecture: str
    weights: str
    rules: str
    dtype: str
    prompt_tokens: int
    decode_tokens: int
    findings: list[Finding] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)
    answer: Answer | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The worst verdict of all."""
        return max((f.verdict for f in self.findings), key=VERDICTS.index, default=OK)

    def of(self, verdict: str) -> list[Finding]:
        """Findings with this verdict; those that others inside explain come last."""
        found = [f for f in self.findings if f.verdict == verdict]
        return sorted(found, key=lambda f: bool(f.inside))

    @property
    def culprits(self) -> tuple[str, ...]:
        """Broken modules that nothing inside them explains, in the model's order."""
        names = (f.module for f in self.findings if f.verdict == BROKEN and not f.inside)
        return tuple(dict.fromkeys(names))

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--format json``."""
        data = _finite(asdict(self))
        counts = {v: sum(f.verdict == v for f in self.findings) for v in VERDICTS}
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "culprits": list(self.culprits),
            "counts": counts,
            **data,
        }


def lines(report: Report, *, everything: bool = False) -> Iterable[str]:
    """The report as text. ``everything``: also the modules that are as they should be."""
    yield f"model     {report.architecture}, {report.dtype} activations"
    yield f"weights   {report.weights}"
    yield f"rules     {report.rules}"
    yield f"prompt    {report.prompt_tokens} tokens, and {report.decode_tokens} decoded one by one"
    yield ""
    shown = [f for f in report.findings if everything or f.verdict != OK]
    if shown:
        yield from _table(shown)
        yield ""
    yield from _summary(report)
    if report.drift:
        last, worst = report.drift[-1], max(report.drift, key=lambda d: _order(d.prefill))
        yield (
            f"drift     hidden states part by {_percent(last.prefill)} (prefill) and "
            f"{_percent(last.decode)} (decode) at the end; most after layer {worst.layer}: "
            f"{_percent(worst.prefill)}"
        )
    if report.answer is not None:
        answer = report.answer
        yield (
            f"logits    part by {_percent(answer.relative)}; both prefer the same token in "
            f"{answer.same_choice:.0%} of the places"
        )
        yield (
            f"loss      {answer.loss:.2f} nats per token of the prompt, the reference "
            f"{answer.reference_loss:.2f}, guessing {answer.chance:.2f}"
        )
    yield from (f"note      {note}" for note in report.notes)


def drift_lines(report: Report) -> Iterable[str]:
    """One line per layer."""
    yield "layer  prefill   decode"
    for drift in report.drift:
        yield f"{drift.layer:>5}  {_percent(drift.prefill):>7}  {_percent(drift.decode):>7}"


def _summary(report: Report) -> Iterable[str]:
    modules = {f.module for f in report.findings}
    broken, suspect = (
        {f.module for f in report.findings if f.verdict == v} for v in (BROKEN, SUSPECT)
    )
    if not broken:
        words = f"all {len(modules)} modules that were compared are as they should be"
        if suspect:
            words = f"{len(suspect)} of {len(modules)} modules are less exact than promised"
        yield f"verdict   {report.verdict}: {words}"
        return
    yield (
        f"verdict   broken: {len(broken)} of {len(modules)} modules, because of "
        f"{', '.join(report.culprits[:6])}" + (", …" if len(report.culprits) > 6 else "")
    )


def _table(findings: Iterable[Finding]) -> Iterable[str]:
    rows = [("verdict", "module", "operator", "compared", "parts by", "allowed")]
    notes: list[tuple[str, ...]] = [()]
    for f in findings:
        rows.append(
            (f.verdict, f.module, f.operator, f.what, _percent(f.relative), _percent(f.bound))
        )
        because = [f"because of {', '.join(f.inside[:3])}"] if f.inside else []
        reason = [] if f.verdict == OK or f.inside else [f"allowed: {f.why}"]
        notes.append((*f.notes, *because, *reason))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row, more in zip(rows, notes, strict=True):
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        yield from (f"    {note}" for note in more)


def _order(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "nan"
    return f"{value * 100:.2g}%" if value < 9.95 else f"{value:.3g}x"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
