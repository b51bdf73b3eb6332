"""Say why a name in a rule is no operator or kernel, and what would make it one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from kt_core.errors import Location, Problem
from kt_core.registry.known import UPSTREAM_PREFIX, distribution_for, not_provided
from kt_core.registry.packages import installed_version
from kt_core.registry.records import PluginRecord, State

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

What = Literal["operator", "kernel"]


def explain_unknown(
    registry: Registry,
    name: str,
    what: What,
    *,
    kind: str | None = None,
    location: Location | None = None,
) -> Problem:
    """Return the most telling problem about ``name``, which is not registered as ``what``.

    In this order: a plugin that brings it is refused (its own code), our distribution that brings
    it is not installed (KT210), it is registered as something else (KT215), KTransformers has it
    and kt does not (KT219), nobody knows it (KT215).
    """
    aliases = {alias.name: alias for alias in registry.aliases() if alias.what == what}
    alias = aliases.get(name)
    if alias is not None and alias.stands_for not in aliases:
        told = explain_unknown(registry, alias.stands_for, what, kind=kind, location=location)
        fact = f'"{name}" is a further name of "{alias.stands_for}"'
        return replace(told, facts=(fact, *told.facts))
    plugin = _plugin_behind(registry, name)
    if plugin is not None and plugin.state is not State.READY:
        return _refused_plugin(plugin, name, location)
    distribution = distribution_for(name)
    if distribution is not None and plugin is None and distribution != "kt-core":
        return _missing_distribution(registry, name, distribution, location)
    mistaken = _something_else(registry, name, what, kind, location)
    if mistaken is not None:
        return mistaken
    known = not_provided(name)
    if known is not None:
        reason = f'"{name}" is a name of KTransformers that kt does not provide: {known.reason}'
        return Problem("KT219", reason, location, help=known.help)
    return _unregistered(registry, name, what, kind, location, plugin)


def _plugin_behind(registry: Registry, name: str) -> PluginRecord | None:
    """Return the plugin that claims ``name`` or, going by the name alone, ought to bring it.

    A refused plugin is preferred: the ready one plainly does not have the name.
    """
    distribution = distribution_for(name)
    package = name.partition(".")[0] if "." in name else None
    behind = [
        record
        for record in registry.plugins
        if name in record.claims
        or record.distribution == distribution
        or (package is not None and package == record.package)
    ]
    behind.sort(key=lambda record: (name not in record.claims, record.state is State.READY))
    return behind[0] if behind else None


def _refused_plugin(plugin: PluginRecord, name: str, location: Location | None) -> Problem:
    return Problem(
        plugin.code,
        f'"{name}" is brought by the plugin "{plugin.name}" ({plugin.label}), '
        f"which is {plugin.state}: {plugin.reason}",
        location,
        plugin.facts,
        plugin.help or None,
    )


def _missing_distribution(
    registry: Registry, name: str, distribution: str, location: Location | None
) -> Problem:
    installed = ", ".join(dict.fromkeys(record.label for record in registry.plugins))
    facts = (f"installed: {installed or 'no plugins'}",)
    version = installed_version(distribution)
    if version is None:
        return Problem(
            "KT210",
            f'"{name}" needs the distribution {distribution}, which is not installed',
            location,
            facts,
            f"pip install {distribution}",
        )
    return Problem(
        "KT210",
        f'"{name}" needs the distribution {distribution}; {version} is installed, but it registers '
        "no plugin",
        location,
        facts,
        f"pip install --force-reinstall {distribution}",
    )


def _something_else(
    registry: Registry, name: str, what: What, kind: str | None, location: Location | None
) -> Problem | None:
    """A kernel written where an operator belongs, the reverse, or a kernel of another kind."""
    kernel = registry.kernel(name)
    if what == "operator" and kernel is not None:
        hosts = [
            o.spec.name for o in registry.operators() if o.spec.kernel_kind == kernel.spec.kind
        ]
        way_out = f"class: {hosts[0]}, and generate_op: {name} among its kwargs" if hosts else None
        message = f'"{name}" is a kernel, not an operator; "class" names an operator'
        return Problem("KT215", message, location, help=way_out)
    if what == "operator":
        return None
    if kernel is not None and kind is not None and kernel.spec.kind != kind:
        names = ", ".join(entry.spec.name for entry in registry.kernels(kind))
        return Problem(
            "KT215",
            f'"{name}" is a kernel for {kernel.spec.kind}; a kernel for {kind} is needed here',
            location,
            (f"kernels for {kind}: {names or 'none are registered'}",),
        )
    if registry.operator(name) is not None:
        message = f'"{name}" is an operator, not a kernel; it goes into "class"'
        return Problem("KT215", message, location)
    return None


def _unregistered(
    registry: Registry,
    name: str,
    what: What,
    kind: str | None,
    location: Location | None,
    plugin: PluginRecord | None,
) -> Problem:
    from kt_core.rules.suggest import did_you_mean

    if what == "operator":
        names = registry.operator_names()
        canonical = [found.spec.name for found in registry.operators()]
        sort = "operator"
    else:
        names = registry.kernel_names(kind)
        canonical = [found.spec.name for found in registry.kernels(kind)]
        sort = f"kernel for {kind}" if kind else "kernel"
    message = f'"{name}" is not a registered {sort}'
    facts = [f"registered: {', '.join(canonical) or 'none'}"]
    if plugin is not None:
        message = f'{plugin.label} registers no {sort} named "{name}"'
        facts += [f"note: {note}" for note in plugin.notes]
    elif "." in name and not name.startswith(UPSTREAM_PREFIX):
        facts.append("a dotted name is looked up in the registry; kt never follows import paths")
    near = did_you_mean(name, names)
    if near is not None:
        way_out = f'did you mean "{near}"?'
    elif plugin is not None and plugin.distribution != "kt-core":
        way_out = f"pip install --upgrade {plugin.distribution}, or take one that is registered"
    else:
        way_out = "kt plugins lists what is registered; a plugin that brings this name is missing"
    return Problem("KT215", message, location, tuple(facts), way_out)
