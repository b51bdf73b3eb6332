"""Load one plugin, so that whatever goes wrong stays with it.

Each plugin gets a pluggy manager of its own. Validation of signatures and the calls are pluggy's,
and no plugin can see, wrap or break another one.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pluggy

from kt_core import __version__
from kt_core.registry import hookspecs
from kt_core.registry.candidates import Candidate, canonical
from kt_core.registry.isolated import (
    TIMEOUT_VARIABLE,
    PluginTimeoutError,
    describe,
    isolated,
    place,
    time_limit,
    timeout_of,
)
from kt_core.registry.records import PluginRecord, RuleResource, State
from kt_core.registry.registration import RULES, SORTS, Collected, claimed, collect
from kt_core.registry.specs import PLUGIN_API
from kt_core.registry.tracing import trace_calls, trace_import, tracing
from kt_core.registry.validation import rule_resource, twice_in

__all__ = ["LoadedPlugin", "describe", "isolated", "load"]

SLOW_SECONDS = 0.1
HEAVY_MODULES = ("torch", "transformers", "numpy")

_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(value).parameters)
    for name, value in vars(hookspecs).items()
    if name.startswith("kt_") and inspect.isfunction(value)
}


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that passed every check of its own, with its hooks."""

    record: PluginRecord
    hooks: pluggy.HookRelay


def load(
    candidate: Candidate, environ: Mapping[str, str] | None = None
) -> LoadedPlugin | PluginRecord:
    """Import ``candidate`` and call its registration hooks; a record says why it was refused."""
    environ = os.environ if environ is None else environ
    before = {name for name in HEAVY_MODULES if name in sys.modules}
    start = time.perf_counter()
    # An editable installation may compile itself at import, which takes what it takes.
    limit = 0.0 if candidate.editable else timeout_of(environ)
    plugin, error = isolated(lambda: _import(candidate, limit))
    traced = tracing(environ)
    if traced:
        trace_import(candidate, time.perf_counter() - start, error)
    if error is not None or plugin is None:
        return _import_failure(candidate, error)
    refusal = _api_refusal(candidate, plugin)
    if refusal is not None:
        return refusal
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    faults = list(_hook_faults(manager, plugin))
    if not faults:
        _, error = isolated(lambda: manager.register(plugin, candidate.name))
        if error is not None:
            faults.append(describe(error))
    if faults:
        return _broken(candidate, faults)
    if traced:
        trace_calls(manager, candidate)
    collected, error = isolated(lambda: _collect(manager, timeout_of(environ)))
    if error is not None or collected is None:
        return _too_slow(candidate, "its registration hooks", error)
    notes = [*candidate.notes, *_unmarked(manager, plugin)]
    seconds = time.perf_counter() - start
    heavy = sorted({name for name in HEAVY_MODULES if name in sys.modules} - before)
    if heavy:
        notes.append(f"imports {', '.join(heavy)} at registration, which slows down every start")
    elif seconds > SLOW_SECONDS:
        notes.append(f"took {seconds:.2f} s to register, which slows down every start")
    record = replace(candidate.record(), notes=tuple(notes), load_seconds=seconds)
    return _examined(candidate, record, collected, manager)


def _import(candidate: Candidate, seconds: float) -> object:
    with time_limit(seconds):
        return candidate.load()


def _collect(manager: pluggy.PluginManager, seconds: float) -> Collected:
    with time_limit(seconds):
        return collect(manager.hook)


def _examined(
    candidate: Candidate,
    record: PluginRecord,
    collected: Collected,
    manager: pluggy.PluginManager,
) -> LoadedPlugin | PluginRecord:
    """Check every spec; one fault refuses the plugin as a whole."""
    package, owner = candidate.package, canonical(candidate.distribution)
    brought: dict[str, Any] = {sort.field: collected.typed(sort) for sort in SORTS}
    faults = collected.faults
    for sort in SORTS:
        faults += [
            f"{sort.word} {spec.name!r}: {fault}"
            for spec in brought[sort.field]
            for fault in sort.faults(spec, package, owner)
        ]
    rules = []
    for text in collected.items.get(RULES, ()):
        resource = rule_resource(text, package)
        if isinstance(resource, str):
            faults.append(resource)
        else:
            rules.append(RuleResource(candidate.name, *resource))
    if not faults:
        faults += twice_in(brought)
    claims = frozenset(claimed(brought))
    if faults:
        return replace(_broken(candidate, faults), claims=claims, notes=record.notes)
    record = replace(record, rules=tuple(rules), claims=claims, **brought)
    return LoadedPlugin(record, manager.hook)


def _too_slow(candidate: Candidate, what: str, error: BaseException | None) -> PluginRecord:
    """Return the record of a plugin that did not come to an end."""
    reason = "failed" if error is None else describe(error).partition(": ")[2] or describe(error)
    return candidate.refused(
        State.BROKEN,
        "KT211",
        f"{what}: {reason}",
        facts=(f"stopped{place(error)}",) if error is not None and place(error) else (),
        help=f"pip install --upgrade {candidate.distribution}, or remove it; "
        f"{TIMEOUT_VARIABLE}=60 gives it more time",
    )


def _import_failure(candidate: Candidate, error: BaseException | None) -> PluginRecord:
    way_out = f"pip install --force-reinstall {candidate.distribution}, or remove it"
    if error is None:
        return candidate.refused(
            State.BROKEN, "KT211", f"{candidate.module} is None, not a module", help=way_out
        )
    if isinstance(error, PluginTimeoutError):
        return _too_slow(candidate, f"importing {candidate.module}", error)
    import logging

    logging.getLogger(__name__).debug("importing %s", candidate.module, exc_info=error)
    facts: tuple[str, ...] = ()
    where = place(error)
    if where:
        facts += (f"raised{where}",)
    missing = (getattr(error, "name", None) or "") if isinstance(error, ImportError) else ""
    if missing.partition(".")[0] == "kt_core":
        facts += (f"it was written for another kt-core; installed is {__version__}",)
        way_out = f"pip install --upgrade kt-core {candidate.distribution}"
    return candidate.refused(
        State.BROKEN,
        "KT211",
        f"importing {candidate.module} failed: {describe(error)}",
        facts=facts,
        help=way_out,
    )


def _api_refusal(candidate: Candidate, plugin: object) -> PluginRecord | None:
    """Return the record of a plugin that speaks another plugin API than ours (KT212)."""
    api, error = isolated(lambda: getattr(plugin, "KT_PLUGIN_API", None))
    if error is None and type(api) is int and api == PLUGIN_API:
        return None
    name = candidate.distribution
    if error is not None or type(api) is not int:
        said = "no KT_PLUGIN_API" if api is None else f"KT_PLUGIN_API = {api!r}"
        return candidate.refused(
            State.INCOMPATIBLE,
            "KT212",
            f"{candidate.module} declares {said}; "
            f"kt-core {__version__} speaks plugin API {PLUGIN_API}",
            help=f"pip install --upgrade {name}, or pip uninstall {name}; "
            f"its author writes KT_PLUGIN_API = {PLUGIN_API}",
        )
    newer = f"pip install --upgrade kt-core, or a release of {name} for plugin API {PLUGIN_API}"
    older = f"pip install --upgrade {name}, or a kt-core that speaks plugin API {api}"
    return candidate.refused(
        State.INCOMPATIBLE,
        "KT212",
        f"{candidate.distribution} {candidate.version} speaks plugin API {api}; "
        f"kt-core {__version__} speaks plugin API {PLUGIN_API}",
        help=newer if api > PLUGIN_API else older,
    )


def _broken(candidate: Candidate, faults: list[str]) -> PluginRecord:
    return candidate.refused(
        State.BROKEN,
        "KT211",
        faults[0] if len(faults) == 1 else f"{faults[0]} (and {len(faults) - 1} more)",
        facts=tuple(faults[1:]),
        help=f"pip install --upgrade {candidate.distribution}, or remove it",
    )


def _hook_faults(manager: pluggy.PluginManager, plugin: object) -> Iterator[str]:
    """Yield misspelt hooks and wrong signatures, in terms of the hook that was meant."""
    for attribute, function, options in _marked(manager, plugin):
        hook = options.get("specname") or attribute
        if hook not in _HOOKS:
            if not options.get("optionalhook"):
                yield _unknown_hook(hook)
            continue
        if options.get("wrapper") or options.get("hookwrapper"):
            yield f"{hook} is a wrapper; a plugin only answers for itself"
            continue
        parameters, error = isolated(lambda f=function: inspect.signature(f).parameters)  # type: ignore[misc]
        extra = [
            name
            for name, parameter in (parameters or {}).items()
            if name not in _HOOKS[hook]
            and parameter.kind not in _CATCH_ALL
            and parameter.default is inspect.Parameter.empty
        ]
        if error is not None or extra:
            wrong = f"takes {', '.join(extra)}" if extra else "is no function"
            yield f"{hook} {wrong}; the hook is {hook}({', '.join(_HOOKS[hook])})"


def _unknown_hook(name: str) -> str:
    from kt_core.rules.suggest import did_you_mean

    near = did_you_mean(name, sorted(_HOOKS))
    meant = f'; did you mean "{near}"?' if near else f"; the hooks are {', '.join(sorted(_HOOKS))}"
    return f'"{name}" is not a hook{meant}'


def _marked(
    manager: pluggy.PluginManager, plugin: object
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for attribute in dir(plugin):
        options, error = isolated(
            lambda name=attribute: manager.parse_hookimpl_opts(plugin, name)  # type: ignore[misc]
        )
        if error is None and options is not None:
            yield attribute, getattr(plugin, attribute), dict(options)


def _unmarked(manager: pluggy.PluginManager, plugin: object) -> Iterator[str]:
    """Yield notes on functions that look like hooks and are none for want of the marker."""
    marked = {attribute for attribute, _, _ in _marked(manager, plugin)}
    for name in dir(plugin):
        if not name.startswith("kt_") or name in marked:
            continue
        value, error = isolated(lambda name=name: getattr(plugin, name))  # type: ignore[misc]
        home = getattr(plugin, "__name__", None)
        if error is not None or not inspect.isroutine(value):
            continue
        if inspect.ismodule(plugin) and getattr(value, "__module__", home) != home:
            continue
        yield f"{name} is not marked with @kt_core.hookimpl, so it is not called"
