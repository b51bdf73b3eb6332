"""Kernels that a rule names: do they exist, fit the operator, and run on the phase's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kt_core.rules.fields import KERNEL_KWARGS
from kt_core.rules.problems import Problems
from kt_core.rules.replacement import Replacement
from kt_core.rules.schema_check import shown
from kt_core.rules.text import listed, printable, show

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
    assert_kind = replace.operator.kernel_kind if replace.operator is not None else None
    for name, device_name in KERNEL_KWARGS.items():
        if name not in replace.kwargs:
            continue
        value = replace.kwargs[name]
        if replace.operator is not None and assert_kind is None:
            if name not in replace.operator.kwargs_schema.get("properties", {}):
                problems.add(
                    "KT138",
                    f"{replace.operator.name} runs no kernels, so {name} means nothing to it",
                    replace.key(name),
                    help=f"delete {name}",
                )
            continue
        if value is None or (isinstance(value, str) and value.strip().casefold() in _NO_KERNEL):
            _no_kernel(replace, name, registry, problems)
            continue
        if not isinstance(value, str):
            problems.add(
                "KT132",
                f"{name} must be the name of a kernel, not {shown(value)}",
                replace.value(name),
                help=_example(name, assert_kind, registry),
            )
            continue
        found = registry.kernel(value, assert_kind)
        if found is None:
            replace.unresolved = True
            _unknown_kernel(replace, name, value, registry, problems)
            continue
        replace.kernels[name] = found.spec
        _kernel_device(replace, name, device_name, found.spec, kinds, problems)


def _no_kernel(replace: Replacement, name: str, registry: Registry, problems: Problems) -> None:
    other = next(kernel for kernel in KERNEL_KWARGS if kernel != name)
    named = replace.kwargs.get(other)
    phase = "prefill" if name == "prefill_op" else "decode"
    known = isinstance(named, str) and named.strip().casefold() not in _NO_KERNEL
    kind = replace.operator.kernel_kind if replace.operator is not None else None
    problems.add(
        "KT139",
        f"{name}: {shown(replace.kwargs[name])} names no kernel, but {phase} needs one",
        replace.value(name),
        facts=["KTransformers then ran the other phase's kernel"] if known else [],
        help=f"{name}: {named}" if known else _example(name, kind, registry),
    )


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


def _kernel_device(
    replace: Replacement,
    name: str,
    device_name: str,
    kernel: KernelSpec,
    kinds: Mapping[str, str],
    problems: Problems,
) -> None:
    """A kernel must run on the device its phase is on. Without a device the plan chooses one."""
    if device_name not in replace.kwargs and device_name == "prefill_device":
        device_name = "generate_device"
    kind = kinds.get(device_name)
    if kind is None or kind in kernel.devices:
        return
    problems.add(
        "KT136",
        f"the kernel {show(kernel.name)} does not run on {replace.kwargs[device_name]}",
        replace.value(device_name if device_name in replace.kwargs else name),
        facts=[f"it runs on: {listed(kernel.devices)}", f"named by {name}: {replace.kwargs[name]}"],
        help=f"{device_name}: {show(kernel.devices[0])}",
    )
