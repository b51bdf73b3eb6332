"""The registry: which operators and kernels there are, and what became of every plugin."""

from __future__ import annotations

import importlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

from kt_core import __version__
from kt_core.devices.kinds import add_kind
from kt_core.errors import Location, PluginError, Problem
from kt_core.registry.allowlist import ALLOW_VARIABLE, allow
from kt_core.registry.candidates import (
    CORE_DISTRIBUTION,
    CORE_PLUGIN,
    Candidate,
    canonical,
    find_candidates,
    refuse_namesakes,
)
from kt_core.registry.conflicts import settle
from kt_core.registry.isolated import can_ask
from kt_core.registry.known import DISTRIBUTION_OF_PACKAGE
from kt_core.registry.loading import LoadedPlugin, load
from kt_core.registry.records import Found, PluginRecord, RuleResource, State
from kt_core.registry.specs import (
    AliasSpec,
    ArchitectureSpec,
    CommandSpec,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
    ProbeResult,
    Rejected,
)
from kt_core.registry.validation import names_of

CORE_MODULE = "kt_core.operators.plugin"

__all__ = ["Found", "PluginRecord", "Registry", "core_candidate", "default_registry"]

if TYPE_CHECKING:
    from pluggy import HookRelay

What = Literal["operator", "kernel"]
Spec = OperatorSpec | KernelSpec


class Registry:
    """Immutable once built. Made by :meth:`discover`, or by :meth:`of` in tests."""

    def __init__(
        self,
        plugins: Sequence[LoadedPlugin],
        refused: Sequence[PluginRecord] = (),
        environ: Mapping[str, str] | None = None,
        *,
        isolate: bool = False,
    ) -> None:
        self._isolate = isolate and can_ask()
        kept, duplicates = settle(plugins)
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self._hooks = {plugin.record.name: plugin.hooks for plugin in kept}
        self._probed: dict[Hashable, ProbeResult] = {}
        records = [*(plugin.record for plugin in kept), *duplicates, *refused]
        self.plugins: tuple[PluginRecord, ...] = tuple(sorted(records, key=_record_order))
        self._operators: dict[str, Found[OperatorSpec]] = {}
        self._kernels: dict[str, Found[KernelSpec]] = {}
        self._devices: dict[str, tuple[DeviceSpec, PluginRecord]] = {}
        for record in self.plugins:
            for operator in record.operators:
                host = Found(operator, record)
                self._operators.update(dict.fromkeys(names_of(operator), host))
            for kernel in record.kernels:
                found = Found(kernel, record)
                self._kernels.update(dict.fromkeys(names_of(kernel), found))
            for device in record.devices:
                self._devices[device.name] = (device, record)
                add_kind(device.name)
        self._add_aliases()

    @classmethod
    def discover(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        only: Sequence[str] | None = None,
        isolate: bool = True,
    ) -> Registry:
        """Load the core's plugin and every installed one that ``KT_PLUGINS`` does not leave out.

        A plugin that cannot be used becomes a record; only a ``KT_PLUGINS`` that names something
        not installed raises (``PluginError`` KT218). ``only`` names the plugins to load instead of
        the variable. With ``isolate`` the probes of plugins that are not kt's own run in a process of
        their own.
        """
        environ = os.environ if environ is None else environ
        setting = environ.get(ALLOW_VARIABLE) if only is None else ",".join(only)
        candidates, refused = allow(*find_candidates(), setting)
        return cls._load([core_candidate(), *candidates], refused, environ, isolate=isolate)

    @classmethod
    def of(cls, *plugins: object, environ: Mapping[str, str] | None = None) -> Registry:
        """Build a registry of exactly these plugins: modules, objects with hooks, or candidates."""
        candidates = [_as_candidate(plugin, number) for number, plugin in enumerate(plugins, 1)]
        return cls._load(candidates, [], environ)

    @classmethod
    def _load(
        cls,
        candidates: Sequence[Candidate],
        refused: Iterable[PluginRecord],
        environ: Mapping[str, str] | None,
        *,
        isolate: bool = False,
    ) -> Registry:
        loaded: list[LoadedPlugin] = []
        distinct, namesakes = refuse_namesakes(candidates)
        records = [*refused, *namesakes]
        for candidate in distinct:
            result = load(candidate, environ)
            if isinstance(result, LoadedPlugin):
                loaded.append(result)
            else:
                records.append(result)
        return cls(loaded, records, environ, isolate=isolate)

    def operator(self, name: str) -> Found[OperatorSpec] | None:
        """Return the operator of this name or alias."""
        return self._operators.get(name)

    def kernel(self, name: str, kind: str | None = None) -> Found[KernelSpec] | None:
        """Return the kernel of this name or alias, if it is of ``kind``."""
        found = self._kernels.get(name)
        return found if found is not None and kind in (None, found.spec.kind) else None

    def operators(self) -> tuple[Found[OperatorSpec], ...]:
        """Return all operators, sorted by name."""
        items = sorted(self._operators.items())
        return tuple(found for name, found in items if name == found.spec.name)

    def kernels(self, kind: str | None = None) -> tuple[Found[KernelSpec], ...]:
        """Return all kernels (of ``kind``), sorted by name."""
        items = sorted(self._kernels.items())
        return tuple(
            found
            for name, found in items
            if name == found.spec.name and kind in (None, found.spec.kind)
        )

    def operator_names(self) -> tuple[str, ...]:
        """Return every name and alias an operator is found by."""
        return tuple(sorted(self._operators))

    def kernel_names(self, kind: str | None = None) -> tuple[str, ...]:
        """Return every name and alias a kernel (of ``kind``) is found by."""
        return tuple(
            sorted(name for name, found in self._kernels.items() if kind in (None, found.spec.kind))
        )

    def names(self, spec: OperatorSpec | KernelSpec) -> tuple[str, ...]:
        """Return every name that leads to ``spec``: its own, its aliases, those that others gave it."""
        table: Mapping[str, Found[OperatorSpec] | Found[KernelSpec]]
        table = self._operators if isinstance(spec, OperatorSpec) else self._kernels
        own = names_of(spec)
        given = sorted(name for name, found in table.items() if found.spec == spec)
        return tuple(dict.fromkeys((*own, *given)))

    def rule_files(self) -> tuple[RuleResource, ...]:
        """Return the rule files that plugins bring, sorted."""
        files = (resource for record in self.plugins for resource in record.rules)
        return tuple(sorted(files, key=str))

    def aliases(self) -> tuple[AliasSpec, ...]:
        """Return the names that plugins give to operators and kernels of whatever distribution."""
        return tuple(alias for record in self.plugins for alias in record.aliases)

    def architectures(self) -> tuple[ArchitectureSpec, ...]:
        """Return the model families that plugins bring, sorted by name."""
        found = (spec for record in self.plugins for spec in record.architectures)
        return tuple(sorted(found, key=lambda spec: spec.name))

    def devices(self) -> tuple[DeviceSpec, ...]:
        """Return the kinds of devices that are known, the core's first."""
        return tuple(spec for spec, _ in self._devices.values())

    def load_device(self, spec: DeviceSpec) -> type:
        """Import the class behind a kind of devices; raises ``PluginError`` as ``load_target``."""
        from kt_core.registry.targets import load_target

        return load_target(spec, self._devices[spec.name][1])

    def commands(self) -> Mapping[str, tuple[CommandSpec, PluginRecord]]:
        """Return the commands that plugins bring, by name."""
        found = {spec.name: (spec, record) for record in self.plugins for spec in record.commands}
        return dict(sorted(found.items()))

    def problems(self) -> tuple[Problem, ...]:
        """Return one problem per plugin that is installed and cannot be used."""
        found = (record.problem() for record in self.plugins if record.state is not State.DISABLED)
        return tuple(problem for problem in found if problem is not None)

    def unknown(
        self,
        name: str,
        what: What,
        *,
        kind: str | None = None,
        location: Location | None = None,
    ) -> Problem:
        """Say why ``name`` cannot be used, and what to install or write instead."""
        from kt_core.registry.unknown import explain_unknown

        return explain_unknown(self, name, what, kind=kind, location=location)

    def probe(self, spec: Spec, device: str) -> ProbeResult:
        """Return whether ``spec`` can run on ``device`` (``"cpu"``, ``"cuda:1"``).

        Whatever its plugin's probe does wrong is a rejection. Only a spec that is not of this
        registry raises (``PluginError`` KT215).
        """
        return self.probe_each([(spec, device)], apart=not self._is_ours(spec))[0]

    def probe_each(
        self, items: Sequence[tuple[Spec, str]], *, apart: bool = True
    ) -> list[ProbeResult]:
        """Return whether each ``(spec, device)`` can run, as :meth:`probe` does for one.

        ``apart`` asks in another process, so that a probe that crashes or hangs does no harm. Only the
        plugins of a registry that was discovered can be found there; the core's own never need it.
        """
        from kt_core.registry.probing import device_rejection, probe

        environ = dict(self.environ)
        keys = [
            (type(spec), spec.name, device, frozenset(environ.items())) for spec, device in items
        ]
        away: dict[Hashable, tuple[Spec, str]] = {}
        for key, (spec, device) in zip(keys, items, strict=True):
            if key in self._probed:
                continue
            hooks = self._hooks_of(spec)
            unfit = device_rejection(spec, device, environ)
            if unfit is not None:
                self._probed[key] = unfit
            elif apart and self._isolate and self._record_of(spec).name != CORE_PLUGIN:
                away[key] = (spec, device)
            else:
                self._probed[key] = probe(spec, device, hooks, environ)
        if away:
            results = self.ask_apart(list(away.values()))
            self._probed.update(zip(away, results, strict=True))
        return [self._probed[key] for key in keys]

    def ask_apart(
        self, items: Sequence[tuple[Spec, str]], *, targets: bool = False
    ) -> list[ProbeResult]:
        """Probe ``(spec, device)`` pairs in another process, which may crash or hang without harm.

        With ``targets`` the classes behind the specs are imported there instead.
        """
        from kt_core.registry.isolation import Item, ask

        asked: list[Item] = [
            ("operator" if isinstance(spec, OperatorSpec) else "kernel", spec.name, device)
            for spec, device in items
        ]
        plugins = sorted({self._record_of(spec).name for spec, _ in items} - {CORE_PLUGIN})
        return ask(plugins, asked, dict(self.environ), targets=targets)

    def rejection(
        self,
        found: Found[OperatorSpec] | Found[KernelSpec],
        device: str,
        location: Location | None = None,
    ) -> Problem | None:
        """Return the KT214 problem if ``found`` cannot run on ``device``, else ``None``."""
        result = self.probe(found.spec, device)
        if not isinstance(result, Rejected):
            return None
        return Problem(
            "KT214",
            f'{found.plugin.label} cannot run here: "{found.spec.name}" on {device}',
            location,
            tuple(f"rejected: {reason}" for reason in result.reasons),
            result.help or f"pip install --upgrade {found.plugin.distribution}, or name another",
        )

    def load_target(self, spec: Spec | ArchitectureSpec) -> type:
        """Import the class behind ``spec``; raises ``PluginError`` KT216 (KT220 without torch)."""
        from kt_core.registry.targets import load_target

        return load_target(spec, self._record_of(spec))

    def report_each(self, records: Sequence[PluginRecord]) -> list[tuple[str, ...]]:
        """Return what :meth:`report` does for each, asked in another process where that is possible."""
        from kt_core.registry.isolation import ask

        apart = [r for r in records if r.name in self._hooks and r.name != CORE_PLUGIN]
        if not self._isolate:
            return [self.report(record) for record in records]
        names = [record.name for record in apart]
        answers = ask(names, [("report", name, "") for name in names], self.environ)
        found = {
            name: (f"kt_report failed: {answer.reasons[0]}",)
            if isinstance(answer, Rejected)
            else tuple(answer.detail.splitlines())
            for name, answer in zip(names, answers, strict=True)
        }
        return [
            found[record.name] if record.name in found else self.report(record)
            for record in records
        ]

    def report(self, record: PluginRecord) -> tuple[str, ...]:
        """Return the lines a ready plugin has for ``kt doctor``."""
        from kt_core.registry.environment import probe_env
        from kt_core.registry.loading import describe, isolated

        env = probe_env("cpu", self.environ)
        hooks = self._hooks.get(record.name)
        if hooks is None:
            return ()
        lines, error = isolated(lambda: list(_lines(hooks.kt_report(env=env))))
        return (f"kt_report failed: {describe(error)}",) if error else tuple(lines or ())

    def _add_aliases(self) -> None:
        """Let aliases lead to what they stand for; one of a thing that is missing leads nowhere.

        An alias of an alias does not count, so that the order of plugins decides nothing.
        """
        aliases = self.aliases()
        operators = {
            a.name: self._operators.get(a.stands_for) for a in aliases if a.what == "operator"
        }
        kernels = {a.name: self._kernels.get(a.stands_for) for a in aliases if a.what == "kernel"}
        self._operators.update({name: found for name, found in operators.items() if found})
        self._kernels.update({name: found for name, found in kernels.items() if found})

    def _record_of(self, spec: Spec | ArchitectureSpec) -> PluginRecord:
        if isinstance(spec, ArchitectureSpec):
            bringing = (record for record in self.plugins if spec in record.architectures)
            return next(bringing)
        table: Mapping[str, Found[OperatorSpec] | Found[KernelSpec]]
        table = self._operators if isinstance(spec, OperatorSpec) else self._kernels
        found = table.get(spec.name)
        if found is None or found.spec != spec:
            raise PluginError.of("KT215", f'"{spec.name}" is not registered in this registry')
        return found.plugin

    def _is_ours(self, spec: Spec) -> bool:
        distribution = canonical(self._record_of(spec).distribution)
        return distribution in DISTRIBUTION_OF_PACKAGE.values()

    def _hooks_of(self, spec: Spec) -> HookRelay:
        return self._hooks[self._record_of(spec).name]


@cache
def default_registry() -> Registry:
    """Return the registry of this process, discovered on first use."""
    return Registry.discover()


def core_candidate() -> Candidate:
    """Return the core's own plugin, which is there whatever is installed."""
    return Candidate(
        CORE_PLUGIN,
        CORE_DISTRIBUTION,
        __version__,
        CORE_MODULE,
        CORE_PLUGIN,
        lambda: importlib.import_module(CORE_MODULE),
    )


def _as_candidate(plugin: object, number: int) -> Candidate:
    """Wrap an object handed to ``Registry.of``.

    The modules of our own distributions count as theirs. Anything else belongs to no distribution,
    so that its names are free.
    """
    if isinstance(plugin, Candidate):
        return plugin
    module = getattr(plugin, "__name__", "")
    if module == CORE_MODULE:
        return core_candidate()
    package = module.partition(".")[0]
    if package in DISTRIBUTION_OF_PACKAGE:
        distribution = DISTRIBUTION_OF_PACKAGE[package]
        return Candidate(package, distribution, "", module, package, lambda: plugin)
    name = module or f"{type(plugin).__name__}-{number}"
    return Candidate(name, name, "", name, "", lambda: plugin)


def _lines(reports: Iterable[Iterable[str]]) -> Iterator[str]:
    """Flatten what ``kt_report`` returned; a lone string is taken for its lines."""
    for report in reports:
        for text in (report,) if isinstance(report, str) else report:
            yield from str(text).splitlines()


def _record_order(record: PluginRecord) -> tuple[bool, str, str, str]:
    return record.name != CORE_PLUGIN, canonical(record.distribution), record.name, record.version
