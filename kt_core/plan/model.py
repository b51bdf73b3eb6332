"""What will happen, decided completely before a byte of weights is read. Serialisable plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kt_core.errors import Location, PlanError, Problem, Severity
from kt_core.models.binding import Binding, ExpertsBinding

FORMAT = 1
"""Version of the JSON form."""


@dataclass(frozen=True)
class KernelPlan:
    """A kernel in one phase. ``detail`` is what its probe said ("AVX-512 VNNI")."""

    name: str
    device: str
    distribution: str
    options: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True)
class ModulePlan:
    """What becomes of one module.

    ``operator`` is a registered name or ``"default"``. ``rule`` is the index of the rule that won
    (``None``: no rule matched), ``place`` where it stands. ``resident`` are bytes per device once
    loaded, ``stored`` bytes in the file. ``tied_to`` names the parameter that it shares. ``streamed``
    are bytes per device of a prefill kernel that is there only while a long prompt is in its layer.
    """

    path: str
    class_name: str
    operator: str
    distribution: str
    rule: int | None
    place: str
    device: str
    out_device: str | None
    kwargs: Mapping[str, Any]
    prefill: KernelPlan | None
    decode: KernelPlan | None
    bindings: tuple[Binding, ...]
    experts: ExpertsBinding | None
    stored: int
    resident: Mapping[str, int]
    types: tuple[str, ...] = ()
    tied_to: str | None = None
    streamed: Mapping[str, int] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[str, ...]:
        """All stored tensors it takes."""
        names = [name for binding in self.bindings for name in binding.tensors]
        if self.experts is not None:
            names.extend(self.experts.tensors)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class RulePlan:
    """How one rule fared. ``matched`` modules fit it, ``won`` took it; ``lost_to`` counts the rest.

    ``kept_away`` counts modules that it would have matched, by the rule whose ``recursive: false``
    keeps all rules from them.
    """

    index: int
    place: str
    name: str | None
    match_class: str | None
    replace_class: str
    matched: int
    won: int
    lost_to: Mapping[int, int]
    kept_away: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CachePlan:
    """Key/value cache estimate for ``context`` tokens of one sequence."""

    context: int
    bytes_per_token: int
    bytes_per_device: Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """Everything that loading will do. Build it with :func:`kt_core.plan.build.make_plan`."""

    architecture: str
    weights: str | None
    weights_format: str | None
    rules_path: str
    default_device: str
    dtype: str
    modules: tuple[ModulePlan, ...]
    rules: tuple[RulePlan, ...]
    cache: CachePlan
    unused_tensors: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that forbid loading."""
        return tuple(p for p in self.problems if p.severity is Severity.ERROR)

    @property
    def resident(self) -> dict[str, int]:
        """Bytes of weights per device once loaded, with room for the largest layer of a prefill."""
        total = dict(self.streamed)
        for module in self.modules:
            for device, count in module.resident.items():
                total[device] = total.get(device, 0) + count
        return total

    @property
    def streamed(self) -> dict[str, int]:
        """Bytes per device that layer-wise prefill needs for the largest layer."""
        layers: dict[str, dict[str, int]] = {}
        for module in self.modules:
            layer = layers.setdefault(".".join(module.path.split(".")[:3]), {})
            for device, count in module.streamed.items():
                layer[device] = layer.get(device, 0) + count
        devices = {device for layer in layers.values() for device in layer}
        return {
            device: max(layer.get(device, 0) for layer in layers.values()) for device in devices
        }

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Modules with weights that no rule matched; they stay as they are on the default device."""
        return tuple(m.path for m in self.modules if m.rule is None and m.resident)

    @property
    def stored(self) -> int:
        """Bytes of the file that are read, each tensor once."""
        return sum(module.stored for module in self.modules if module.tied_to is None)

    def module(self, path: str) -> ModulePlan | None:
        """Look up one module."""
        return next((m for m in self.modules if m.path == path), None)

    def raise_for_errors(self) -> None:
        """Raise ``PlanError`` with every error the plan found, if it found any."""
        if self.errors:
            raise PlanError(self.errors)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_json` understands."""
        data = asdict(self)
        data["problems"] = [problem.to_json() for problem in self.problems]
        return {
            "format": FORMAT,
            **data,
            "resident": self.resident,
            "stored": self.stored,
            "unmatched": list(self.unmatched),
        }

    def dumps(self) -> str:
        """Return the JSON text."""
        return json.dumps(self.to_json(), indent=2)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild a plan.

        Raises:
            PlanError: KT303 for another format version or data that is no plan.
        """
        if data.get("format") != FORMAT:
            raise PlanError.of(
                "KT303",
                f"this plan has format {data.get('format')!r}, expected {FORMAT}",
                help="write it again: kt plan --format json",
            )
        try:
            return cls(
                **{
                    key: data[key]
                    for key in (
                        "architecture",
                        "weights",
                        "weights_format",
                        "rules_path",
                        "default_device",
                        "dtype",
                    )
                },
                modules=tuple(_module(item) for item in data["modules"]),
                rules=tuple(_rule(item) for item in data["rules"]),
                cache=CachePlan(**data["cache"]),
                unused_tensors=tuple(data["unused_tensors"]),
                problems=tuple(_problem(item) for item in data["problems"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PlanError.of(
                "KT303",
                "this is no plan",
                facts=[f"cause: {error!r}"],
                help="write it again: kt plan --format json",
            ) from error


def _rule(data: Mapping[str, Any]) -> RulePlan:
    counts = {
        key: {int(rule): count for rule, count in data[key].items()}
        for key in ("lost_to", "kept_away")
    }
    return RulePlan(**{**data, **counts})


def _module(data: Mapping[str, Any]) -> ModulePlan:
    fields = dict(data)
    for phase in ("prefill", "decode"):
        fields[phase] = KernelPlan(**fields[phase]) if fields[phase] else None
    fields["bindings"] = tuple(
        Binding(b["parameter"], tuple(b["tensors"]), b["transform"], b["args"])
        for b in fields["bindings"]
    )
    if fields["experts"] is not None:
        parts: dict[str, Any] = {
            part: names if isinstance(names, str) else tuple(names)
            for part, names in fields["experts"].items()
        }
        fields["experts"] = ExpertsBinding(**parts)
    fields["types"] = tuple(fields["types"])
    return ModulePlan(**fields)


def _problem(data: Mapping[str, Any]) -> Problem:
    where = None
    if data["path"] is not None:
        where = Location(data["path"], data["line"], data["column"])
    return Problem(
        data["code"],
        data["message"],
        where,
        tuple(data["facts"]),
        data["help"],
        Severity(data["severity"]),
    )
