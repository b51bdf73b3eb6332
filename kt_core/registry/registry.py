"""The registry: which operators and kernels there are, and what became of every plugin."""

from __future__ import annotations

import importlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

from kt_core import __version__
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
from kt_core.registry.known import DISTRIBUTION_OF_PACKAGE
from kt_core.registry.loading import LoadedPlugin, load
from kt_core.registry.records import Found, PluginRecord, RuleResource, State
from kt_core.registry.specs import KernelSpec, OperatorSpec, ProbeResult, Rejected
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
    ) -> None:
        kept, duplicates = settle(plugins)
        self._environ = os.environ if environ is None else environ
        self._hooks = {plugin.record.name: plugin.hooks for plugin in kept}
        self._probed: dict[Hashable, ProbeResult] = {}
        records = [*(plugin.record for plugin in kept), *duplicates, *refused]
        self.plugins: tuple[PluginRecord, ...] = tuple(sorted(records, key=_record_order))
        self._operators: dict[str, Found[OperatorSpec]] = {}
        self._kernels: dict[str, Found[KernelSpec]] = {}
        for record in self.plugins:
            for operator in record.operators:
                host = Found(operator, record)
                self._operators.update(dict.fromkeys(names_of(operator), host))
            for kernel in record.kernels:
                found = Found(kernel, record)
                self._kernels.update(dict.fromkeys(names_of(kernel), found))

    @classmethod
    def discover(cls, environ: Mapping[str, str] | None = None) -> Registry:
        """Load the core's plugin and every installed one that ``KT_PLUGINS`` does not leave out.

        A plugin that cannot be used becomes a record; only a ``KT_PLUGINS`` that names something
        not installed raises (``PluginError`` KT218).
        """
        environ = os.environ if environ is None else environ
        candidates, refused = allow(*find_candidates(), environ.get(ALLOW_VARIABLE))
        return cls._load([core_candidate(), *candidates], refused, environ)

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
    ) -> Registry:
        loaded: list[LoadedPlugin] = []
        distinct, namesakes = refuse_namesakes(candidates)
        records = [*refused, *namesakes]
        for candidate in distinct:
            result = load(candidate)
            if isinstance(result, LoadedPlugin):
                loaded.append(result)
            else:
                records.append(result)
        return cls(loaded, records, environ)

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

    def rule_files(self) -> tuple[RuleResource, ...]:
        """Return the rule files that plugins bring, sorted."""
        files = (resource for record in self.plugins for resource in record.rules)
        return tuple(sorted(files, key=str))

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
        from kt_core.registry.probing import probe

        environ = dict(self._environ)
        key = (type(spec), spec.name, device, frozenset(environ.items()))
        if key not in self._probed:
            self._probed[key] = probe(spec, device, self._hooks_of(spec), environ)
        return self._probed[key]

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
            f'{found.plugin.distribution} cannot run here: "{found.spec.name}" on {device}',
            location,
            tuple(f"rejected: {reason}" for reason in result.reasons),
            result.help or None,
        )

    def load_target(self, spec: Spec) -> type:
        """Import the class behind ``spec``; raises ``PluginError`` KT216 (KT220 without torch)."""
        from kt_core.registry.targets import load_target

        return load_target(spec, self._record_of(spec))

    def report(self, record: PluginRecord) -> tuple[str, ...]:
        """Return the lines a ready plugin has for ``kt doctor``."""
        from kt_core.registry.environment import probe_env
        from kt_core.registry.loading import describe, isolated

        env = probe_env("cpu", self._environ)
        hooks = self._hooks.get(record.name)
        if hooks is None:
            return ()
        lines, error = isolated(lambda: list(_lines(hooks.kt_report(env=env))))
        return (f"kt_report failed: {describe(error)}",) if error else tuple(lines or ())

    def _record_of(self, spec: Spec) -> PluginRecord:
        table: Mapping[str, Found[OperatorSpec] | Found[KernelSpec]]
        table = self._operators if isinstance(spec, OperatorSpec) else self._kernels
        found = table.get(spec.name)
        if found is None or found.spec != spec:
            raise PluginError.of("KT215", f'"{spec.name}" is not registered in this registry')
        return found.plugin

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
