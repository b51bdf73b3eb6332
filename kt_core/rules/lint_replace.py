"""``replace`` against what is registered: operator, kernels of both phases, devices, options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kt_core.errors import Severity
from kt_core.rules.draft import Draft
from kt_core.rules.fields import PLACEMENT_KWARGS
from kt_core.rules.ktransformers import OPTIONS
from kt_core.rules.lint_devices import check_devices
from kt_core.rules.lint_kernels import check_kernels
from kt_core.rules.lint_options import check_options, known_option
from kt_core.rules.model import DEFAULT
from kt_core.rules.problems import Problems
from kt_core.rules.replacement import Replacement
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, listed, printable, show

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import OperatorSpec


def lint_replace(
    draft: Draft, registry: Registry, problems: Problems, *, after_continue: bool
) -> None:
    """Check the ``replace`` of one rule, and take out of ``draft.kwargs`` what has no effect.

    ``after_continue``: an earlier rule lets this one add kwargs, so they may be meant for another
    rule's operator; the plan checks them once it is known for which.
    """
    name = draft.replace_class
    if name is None:
        return
    operator: OperatorSpec | None = None
    if name != DEFAULT:
        found = registry.operator(name)
        if found is None:
            _unknown_operator(draft, name, registry, problems)
            if draft.kwargs is not None:
                check_devices(Replacement(draft, draft.kwargs, None), problems)
            return
        operator = found.spec
    if draft.kwargs is None:
        return
    replace = Replacement(draft, draft.kwargs, operator)
    kinds = check_devices(replace, problems)
    if operator is None:
        _default(replace, kinds, problems, after_continue)
        return
    check_kernels(replace, kinds, registry, problems)
    check_options(replace, registry, problems, after_continue)


def _unknown_operator(draft: Draft, name: str, registry: Registry, problems: Problems) -> None:
    place = draft.places.get("replace.class", draft.place)
    if name.strip().casefold() == DEFAULT:
        problems.add(
            "KT131",
            f"{show(name)} is not {DEFAULT}; case and spaces count",
            place,
            help=f"class: {DEFAULT}",
        )
        return
    problems.take(registry.unknown(printable(name), "operator", location=place))


def _default(
    replace: Replacement, kinds: Mapping[str, str], problems: Problems, after_continue: bool
) -> None:
    """``default`` keeps the module, so it takes only the devices."""
    for name in list(replace.kwargs):
        if name in PLACEMENT_KWARGS or after_continue:
            continue
        option = OPTIONS.get(name)
        if option is not None and known_option(replace, name, option, problems):
            continue
        near = did_you_mean(name, PLACEMENT_KWARGS)
        problems.add(
            "KT134",
            f"{show(name)} means nothing to default, which keeps the module and only places it",
            replace.key(name),
            facts=[f"it takes: {listed(PLACEMENT_KWARGS)}"],
            help=f"{near}: {bare(str(replace.kwargs[name]))}"
            if near
            else f"delete {bare(name)}, or name an operator as class",
        )
    generate, prefill = (replace.kwargs.get(f"{phase}_device") for phase in ("generate", "prefill"))
    both = {"generate_device", "prefill_device"} <= kinds.keys()
    if both and generate != prefill and not after_continue:
        problems.add(
            "KT134",
            f"default has one place for both phases, {show(generate)}; prefill_device is not used",
            replace.value("prefill_device"),
            help=f"prefill_device: {show(generate)}",
            severity=Severity.WARNING,
        )
