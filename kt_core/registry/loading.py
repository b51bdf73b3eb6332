"""Load one plugin, so that whatever goes wrong stays with it.

Each plugin gets a pluggy manager of its own. Validation of signatures and the calls are pluggy's,
and no plugin can see, wrap or break another one.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pluggy

from kt_core import __version__
from kt_core.registry import hookspecs
from kt_core.registry.candidates import Candidate, canonical
from kt_core.registry.records import PluginRecord, RuleResource, State
from kt_core.registry.specs import PLUGIN_API, KernelSpec, OperatorSpec
from kt_core.registry.validation import (
    kernel_faults,
    operator_faults,
    rule_resource,
    twice_in,
)

T = TypeVar("T")

MAX_ITEMS = 10_000
"""More than this from one hook is taken for an endless generator."""
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


def isolated(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Run plugin code. Return its result, or what it raised.

    ``SystemExit`` and the like are caught as well: a plugin must not end the process. What it
    prints goes to stderr, where it cannot spoil ``--format json``.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return call(), None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - any failure of a plugin becomes its record
        return None, error


def describe(error: BaseException) -> str:
    """Return type and message of an exception on one line."""
    text, failure = isolated(lambda: " ".join(str(error).split()))
    name = type(error).__name__
    if failure is not None:
        return name
    return f"{name}: {text}" if text else name


def load(candidate: Candidate) -> LoadedPlugin | PluginRecord:
    """Import ``candidate`` and call its registration hooks; a record says why it was refused."""
    before = {name for name in HEAVY_MODULES if name in sys.modules}
    start = time.perf_counter()
    plugin, error = isolated(candidate.load)
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
    collected = _collect(manager)
    notes = [*candidate.notes, *_unmarked(manager, plugin)]
    seconds = time.perf_counter() - start
    heavy = sorted({name for name in HEAVY_MODULES if name in sys.modules} - before)
    if heavy:
        notes.append(f"imports {', '.join(heavy)} at registration, which slows down every start")
    elif seconds > SLOW_SECONDS:
        notes.append(f"took {seconds:.2f} s to register, which slows down every start")
    record = replace(candidate.record(), notes=tuple(notes), load_seconds=seconds)
    return _examined(candidate, record, collected, manager)


@dataclass
class _Collected:
    """Raw results of the registration hooks, and what was wrong with them."""

    operators: list[Any]
    kernels: list[Any]
    rules: list[Any]
    faults: list[str]


def _collect(manager: pluggy.PluginManager) -> _Collected:
    collected = _Collected([], [], [], [])
    for hook, bucket in (
        ("kt_register_operators", collected.operators),
        ("kt_register_kernels", collected.kernels),
        ("kt_register_rules", collected.rules),
    ):
        caller = getattr(manager.hook, hook)
        if not caller.get_hookimpls():
            continue
        items, error = isolated(lambda caller=caller: _items(caller()))  # type: ignore[misc]
        if error is not None:
            collected.faults.append(f"{hook}() raised {describe(error)}{_place(error)}")
        elif isinstance(items, str):
            collected.faults.append(f"{hook}() returned {items}")
        else:
            bucket.extend(items or ())
    return collected


def _items(results: list[Any]) -> list[Any] | str:
    """Flatten what a hook returned; a string says what it returned instead of an iterable."""
    if not results:  # pluggy drops None
        return "None instead of a list"
    items: list[Any] = []
    for result in results:
        if isinstance(result, str | bytes | dict) or not isinstance(result, Iterable):
            return f"{type(result).__name__} instead of a list"
        items += itertools.islice(result, MAX_ITEMS + 1)
        if len(items) > MAX_ITEMS:
            return f"more than {MAX_ITEMS} items"
    return items


def _examined(
    candidate: Candidate,
    record: PluginRecord,
    collected: _Collected,
    manager: pluggy.PluginManager,
) -> LoadedPlugin | PluginRecord:
    """Check every spec; one fault refuses the plugin as a whole."""
    faults = collected.faults
    package, owner = candidate.package, canonical(candidate.distribution)
    operators = tuple(_typed(collected.operators, OperatorSpec, "kt_register_operators", faults))
    kernels = tuple(_typed(collected.kernels, KernelSpec, "kt_register_kernels", faults))
    for operator in operators:
        faults += [
            f"operator {operator.name!r}: {fault}"
            for fault in operator_faults(operator, package, owner)
        ]
    for kernel in kernels:
        faults += [
            f"kernel {kernel.name!r}: {fault}" for fault in kernel_faults(kernel, package, owner)
        ]
    rules = []
    for text in collected.rules:
        resource = rule_resource(text, package)
        if isinstance(resource, str):
            faults.append(resource)
        else:
            rules.append(RuleResource(candidate.name, *resource))
    if not faults:
        faults += twice_in({"operators": operators, "kernels": kernels})
    claims = frozenset(_claimed([*operators, *kernels]))
    if faults:
        return replace(_broken(candidate, faults), claims=claims, notes=record.notes)
    record = replace(
        record, operators=operators, kernels=kernels, rules=tuple(rules), claims=claims
    )
    return LoadedPlugin(record, manager.hook)


def _claimed(specs: list[Any]) -> Iterator[str]:
    """Names in specs that may be malformed."""
    for spec in specs:
        aliases = spec.aliases if isinstance(spec.aliases, tuple | list) else ()
        yield from (name for name in (spec.name, *aliases) if isinstance(name, str))


def _typed(items: list[Any], kind: type[T], hook: str, faults: list[str]) -> Iterator[T]:
    for item in items:
        if isinstance(item, kind):
            yield item
        else:
            what = (
                item.__name__
                if isinstance(item, type)
                else f"a value of type {type(item).__name__}"
            )
            faults.append(f"{hook}() returned {what} where it must return {kind.__name__} objects")


def _import_failure(candidate: Candidate, error: BaseException | None) -> PluginRecord:
    way_out = f"pip install --force-reinstall {candidate.distribution}, or remove it"
    if error is None:
        return candidate.refused(
            State.BROKEN, "KT211", f"{candidate.module} is None, not a module", help=way_out
        )
    import logging

    logging.getLogger(__name__).debug("importing %s", candidate.module, exc_info=error)
    facts: tuple[str, ...] = ()
    place = _place(error)
    if place:
        facts += (f"raised{place}",)
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


def _place(error: BaseException) -> str:
    """Return `` at file:line`` of the innermost frame, or of the text a SyntaxError is about."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    return f" at {own[-1].filename}:{own[-1].lineno}" if len(own) > 1 else ""


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
