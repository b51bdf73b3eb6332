"""Kernels that a rule names: do they exist, fit the operator, and run on the phase's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kt_core.rules.fields import KERNEL_KWARGS
from kt_core.rules.problems import Problems
from kt_core.rules.replacement import Replacement
from kt_core.rules.schema_check import shown
from kt_core.rules.text import bare, listed, printable, show

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import KernelSpec


_NO_KERNEL = ("none", "null", "~", "")


def check_kernels(
    replace: Replacement, kinds: Mapping[str, str], registry: Registry, problems: Problems
) -> None:
    """Check the kernels of both phases; those that are registered go to ``replace.kernels``.

    ``kinds`` are the device types of the kwargs that name a device.
    """
    kind = replace.operator.kernel_kind if replace.operator is not None else None
    for name in KERNEL_KWARGS:
        if name not in replace.kwargs:
            continue
        if kind is None:
            _no_kernels_here(replace, name, problems)
            continue
        spec = _named(replace, name, kind, registry, problems)
        if spec is not None:
            replace.kernels[name] = spec
    # A kernel that is named comes first: of two reasons against one device, its own says more.
    for name in sorted(KERNEL_KWARGS, key=lambda name: name not in replace.kwargs):
        _device_of_phase(replace, name, kinds, problems)


def _no_kernels_here(replace: Replacement, name: str, problems: Problems) -> None:
    operator = replace.operator
    if operator is not None and name not in operator.kwargs_schema.get("properties", {}):
        problems.add(
            "KT138",
            f"{operator.name} runs no kernels, so {name} means nothing to it",
            replace.key(name),
            help=f"delete {name}",
        )


def _named(
    replace: Replacement, name: str, kind: str, registry: Registry, problems: Problems
) -> KernelSpec | None:
    """Return the kernel that ``name`` names, or report why there is none."""
    value = replace.kwargs[name]
    if value is None or (isinstance(value, str) and value.strip().casefold() in _NO_KERNEL):
        _no_kernel(replace, name, kind, registry, problems)
        return None
    if not isinstance(value, str):
        problems.add(
            "KT132",
            f"{name} must be the name of a kernel, not {shown(value)}",
            replace.value(name),
            help=_example(name, kind, registry),
        )
        return None
    found = registry.kernel(value, kind)
    if found is None:
        replace.unresolved = True
        _unknown_kernel(replace, name, value, registry, problems)
        return None
    return found.spec


def _no_kernel(
    replace: Replacement, name: str, kind: str, registry: Registry, problems: Problems
) -> None:
    other = _other(name)
    named = replace.kwargs.get(other)
    phase = "prefill" if name == "prefill_op" else "decode"
    facts: list[str] = []
    help_ = _example(name, kind, registry)
    if isinstance(named, str) and named.strip().casefold() not in _NO_KERNEL:
        facts = ["KTransformers then ran the other phase's kernel, where that phase runs"]
        help_ = f"{name}: {named}"
        there, here = (replace.kwargs.get(KERNEL_KWARGS[phase]) for phase in (other, name))
        if isinstance(there, str) and there != here:
            help_ += f", and {KERNEL_KWARGS[name]}: {bare(there)}"
    problems.add(
        "KT139",
        f"{name}: {shown(replace.kwargs[name])} names no kernel, but {phase} needs one",
        replace.value(name),
        facts=facts,
        help=help_,
    )


def _other(name: str) -> str:
    return next(kernel for kernel in KERNEL_KWARGS if kernel != name)


def _example(name: str, kind: str | None, registry: Registry) -> str | None:
    kernels = registry.kernels(kind)
    return f"{name}: {kernels[0].spec.name}" if kernels else None


def _unknown_kernel(
    replace: Replacement, name: str, value: str, registry: Registry, problems: Problems
) -> None:
    kind = replace.operator.kernel_kind if replace.operator is not None else None
    where = replace.value(name)
    other = registry.kernel(value)
    if other is not None and kind is not None:
        fitting = [found.spec.name for found in registry.kernels(kind)]
        problems.add(
            "KT137",
            f"{show(value)} is for {other.spec.kind}; {replace.name} needs a kernel for {kind}",
            where,
            facts=[f"kernels for {kind}: {listed(fitting) or 'none registered'}"],
            help=f"{name}: {fitting[0]}" if fitting else None,
        )
        return
    problems.take(registry.unknown(printable(value), "kernel", kind=kind, location=where))


def _device_of_phase(
    replace: Replacement, name: str, kinds: Mapping[str, str], problems: Problems
) -> None:
    """A phase's kernel must run where the phase does.

    A phase without a kernel runs the other phase's, and one without a device is where the other is.
    Without either, the plan chooses.
    """
    other, device_name = _other(name), KERNEL_KWARGS[name]
    given = name in replace.kwargs
    kernel = replace.kernels.get(name if given else other)
    if device_name not in replace.kwargs:
        device_name = KERNEL_KWARGS[other]
        if not given:
            return  # the other phase altogether
    kind = kinds.get(device_name)
    where = replace.value(device_name)
    if kernel is None or kind is None or kind in kernel.devices or where in replace.bad_devices:
        return
    replace.bad_devices.add(where)
    facts = [f"it runs on: {listed(kernel.devices)}"]
    if given:
        facts.append(f"named by {name}: {replace.kwargs[name]}")
    else:
        facts.append(f"{name} is not given, so the kernel of {other} runs in both phases")
    problems.add(
        "KT136",
        f"the kernel {show(kernel.name)} does not run on {replace.kwargs[device_name]}",
        where,
        facts=facts,
        help=f"{device_name}: {show(kernel.devices[0])}",
    )
