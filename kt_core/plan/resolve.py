"""From a rule's words to registered operators, kernels and devices that can run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kt_core.errors import Location, Problem, Severity, UsageError
from kt_core.plan.devices import Devices, canonical, kind_of
from kt_core.registry.registry import Found, Registry
from kt_core.registry.specs import EXPERTS, LINEAR, Accepted, KernelSpec, OperatorSpec
from kt_core.rules.model import DEFAULT, Rule

DEFAULT_KERNELS = {LINEAR: "kt_core.torch_linear", EXPERTS: "kt_core.torch_experts"}
"""What runs where a rule names no kernel at all."""


@dataclass(frozen=True)
class ResolvedKernel:
    """A kernel that was found, probed and given its options."""

    found: Found[KernelSpec]
    device: str
    options: Mapping[str, Any]
    detail: str


@dataclass(frozen=True)
class Resolution:
    """What a rule means here. ``operator`` is ``None`` for ``default``."""

    operator: Found[OperatorSpec] | None
    device: str
    out_device: str | None
    prefill: ResolvedKernel | None = None
    decode: ResolvedKernel | None = None


@dataclass
class Resolver:
    """Resolves rules once each, and collects the problems they have on the way."""

    registry: Registry
    devices: Devices
    default_device: str
    problems: list[Problem] = field(default_factory=list)
    _done: dict[Any, Resolution | None] = field(default_factory=dict)

    def resolve(
        self, rule: Rule, kwargs: Mapping[str, Any], default_device: str | None = None
    ) -> Resolution | None:
        """Return what ``rule`` with the merged ``kwargs`` means, or ``None`` after a problem.

        ``default_device`` is for a rule that names none.
        """
        default = default_device or self.default_device
        key = (rule.index, default, repr(sorted(kwargs.items(), key=lambda item: item[0])))
        if key not in self._done:
            before = len(self.problems)
            resolution = self._resolve(rule, kwargs, default)
            self._done[key] = resolution if len(self.problems) == before else None
        return self._done[key]

    def _resolve(self, rule: Rule, kwargs: Mapping[str, Any], default: str) -> Resolution | None:
        operator = None
        if rule.replace_class != DEFAULT:
            operator = self.registry.operator(rule.replace_class)
            if operator is None:
                place = rule.place("replace.class")
                self.problems.append(
                    self.registry.unknown(rule.replace_class, "operator", location=place)
                )
                return None
        generate = self._device(rule, kwargs, "generate_device", kwargs.get("device") or default)
        prefill = self._device(rule, kwargs, "prefill_device", generate)
        if "generate_device" not in kwargs and "prefill_device" in kwargs:
            generate = prefill
        out = self._device(rule, kwargs, "out_device", None) if "out_device" in kwargs else None
        if generate is None or prefill is None:
            return None
        if operator is None:
            return Resolution(operator, generate, out)
        if operator.spec.kernel_kind is None:
            return self._plain(rule, operator, generate, out)
        kind = operator.spec.kernel_kind
        names = self._kernel_names(kwargs, kind)
        if names is None:
            return Resolution(operator, generate, out)
        chosen_prefill = self._kernel(rule, kwargs, "prefill_op", names[0], kind, prefill)
        chosen_decode = self._kernel(rule, kwargs, "generate_op", names[1], kind, generate)
        return Resolution(operator, generate, out, chosen_prefill, chosen_decode)

    def _plain(
        self, rule: Rule, operator: Found[OperatorSpec], device: str, out: str | None
    ) -> Resolution | None:
        """An operator that computes by itself must be able to run on its device."""
        if device not in self.devices.assumed:
            place = rule.place("replace.class")
            problem = self.registry.rejection(operator, kind_of(device), place)
            if problem is not None:
                self.problems.append(problem)
                return None
        return Resolution(operator, device, out)

    @staticmethod
    def _kernel_names(kwargs: Mapping[str, Any], kind: str) -> tuple[str, str] | None:
        """Names for (prefill, decode); a phase that is not named uses the other one's kernel."""
        prefill, decode = kwargs.get("prefill_op"), kwargs.get("generate_op")
        fallback = DEFAULT_KERNELS.get(kind)
        if prefill is None and decode is None and fallback is None:
            return None
        return (prefill or decode or fallback or "", decode or prefill or fallback or "")

    def _device(
        self, rule: Rule, kwargs: Mapping[str, Any], key: str, fallback: str | None
    ) -> str | None:
        written = kwargs.get(key) or fallback or self.default_device
        place = rule.place(f"replace.kwargs.{key}")
        try:
            device = canonical(str(written))
        except UsageError as error:
            problem = error.problems[0]
            self._report("KT320", problem.message, place, problem.help or "")
            return None
        reason = self.devices.missing(device)
        if reason is not None:
            self._report(
                "KT321",
                f"{device} is not on this machine",
                place,
                f"name a device that is here, or plan for another machine with "
                f"--assume-devices {device}",
                (f"rejected: {reason}",),
            )
            return None
        return device

    def _kernel(
        self,
        rule: Rule,
        kwargs: Mapping[str, Any],
        key: str,
        name: str,
        kind: str,
        device: str,
    ) -> ResolvedKernel | None:
        place = rule.place(f"replace.kwargs.{key}")
        found = self.registry.kernel(name, kind)
        if found is None:
            self.problems.append(self.registry.unknown(name, "kernel", kind=kind, location=place))
            return None
        spec = found.spec
        if kind_of(device) not in spec.devices:
            self._report(
                "KT322",
                f"{spec.name} does not run on {device}",
                place,
                f"put this phase on {' or '.join(spec.devices)}, or name another kernel",
                (f"it runs on: {', '.join(spec.devices)}",),
            )
            return None
        detail = "assumed"
        if device not in self.devices.assumed:
            result = self.registry.probe(spec, kind_of(device))
            if not isinstance(result, Accepted):
                problem = self.registry.rejection(found, kind_of(device), place)
                if problem is not None:
                    self.problems.append(problem)
                return None
            detail = result.detail
        allowed = set(spec.options_schema.get("properties", {}))
        options = {k: v for k, v in kwargs.items() if k in allowed}
        return ResolvedKernel(found, device, options, detail)

    def _report(
        self, code: str, message: str, place: Location, help: str, facts: tuple[str, ...] = ()
    ) -> None:
        problem = Problem(code, message, place, facts, help, Severity.ERROR)
        if problem not in self.problems:
            self.problems.append(problem)
