"""``kt plugins --probe``: what every probe says, and whether what a spec names is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kt_core.errors import Problem
from kt_core.registry.specs import KernelSpec, ProbeResult, Rejected

if TYPE_CHECKING:
    from kt_core.registry.records import PluginRecord, Spec
    from kt_core.registry.registry import Registry


@dataclass(frozen=True)
class Answer:
    """What one probe said, or what came of importing one class.

    ``problem`` is set where something is wrong with the plugin; a machine without a GPU is no problem.
    """

    name: str
    what: str
    result: ProbeResult
    problem: Problem | None = None

    def lines(self) -> list[str]:
        """The answer as shown below its plugin."""
        if not isinstance(self.result, Rejected):
            detail = f" ({self.result.detail})" if self.result.detail else ""
            return [f"  {self.name} {self.what}: ok{detail}"]
        lines = [f"  {self.name} {self.what}: no: {'; '.join(self.result.reasons)}"]
        return [*lines, f"    help: {self.result.help}"] if self.result.help else lines

    def as_json(self) -> dict[str, Any]:
        """The answer as plain data."""
        rejected = isinstance(self.result, Rejected)
        return {
            "name": self.name,
            "asked": self.what,
            "accepted": not rejected,
            "detail": "" if isinstance(self.result, Rejected) else self.result.detail,
            "reasons": list(self.result.reasons) if isinstance(self.result, Rejected) else [],
            "help": self.result.help if isinstance(self.result, Rejected) else "",
            "code": self.problem.code if self.problem else None,
        }


Answers = Mapping[str, Sequence[Answer]]
"""Answers by the plugin's name."""


def probe_all(registry: Registry, records: Sequence[PluginRecord]) -> Answers:
    """Ask the probes of all ``records`` and import their classes, in another process."""
    from kt_core.registry.packages import installed_version

    torch = installed_version("torch") is not None
    found: dict[str, list[Answer]] = {}
    for record in records:
        specs: list[Spec] = [*record.operators, *record.kernels]
        pairs = [(spec, device) for spec in specs for device in _devices(spec)]
        answers = [
            _answer(record, spec, f"on {device}", result)
            for (spec, device), result in zip(pairs, registry.probe_each(pairs), strict=True)
        ]
        if specs and torch:
            results = registry.ask_apart([(spec, "cpu") for spec in specs], targets=True)
            answers += [
                _answer(record, spec, "class", result, target=True)
                for spec, result in zip(specs, results, strict=True)
                if isinstance(result, Rejected)
            ]
        found[record.name] = answers
    return found


def _devices(spec: Spec) -> tuple[str, ...]:
    return spec.devices if isinstance(spec, KernelSpec) else ("cpu",)


def _answer(
    record: PluginRecord, spec: Spec, what: str, result: ProbeResult, *, target: bool = False
) -> Answer:
    problem = None
    if isinstance(result, Rejected) and (target or _broken(result)):
        remedy = result.help or f"pip install --upgrade {record.distribution}, or remove it"
        result = Rejected(result.reasons, remedy)
        problem = Problem(
            "KT216" if target else "KT214",
            f"{record.label}: {spec.name}: {result.reasons[0]}",
            help=remedy,
        )
    return Answer(spec.name, what, result, problem)


def _broken(result: Rejected) -> bool:
    """Whether the probe itself failed, rather than found that something is missing."""
    return result.reasons[0].startswith("its probe ")
