"""What plugins may register: one row for each hook, so that all of them are read and checked alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kt_core.registry.isolated import PluginTimeoutError, describe, isolated, place
from kt_core.registry.specs import (
    AliasSpec,
    ArchitectureSpec,
    CommandSpec,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
)
from kt_core.registry.validation import (
    alias_faults,
    architecture_faults,
    command_faults,
    device_faults,
    kernel_faults,
    operator_faults,
)

MAX_ITEMS = 10_000
"""More than this from one hook is taken for an endless generator."""


@dataclass(frozen=True)
class Sort:
    """One sort of things to register: its hook, its field in a record, its type and its checks."""

    hook: str
    field: str
    word: str
    type: type[Any]
    faults: Callable[[Any, str, str], Iterator[str]]


SORTS = (
    Sort("kt_register_operators", "operators", "operator", OperatorSpec, operator_faults),
    Sort("kt_register_kernels", "kernels", "kernel", KernelSpec, kernel_faults),
    Sort("kt_register_aliases", "aliases", "alias", AliasSpec, alias_faults),
    Sort(
        "kt_register_architectures",
        "architectures",
        "architecture",
        ArchitectureSpec,
        architecture_faults,
    ),
    Sort("kt_register_commands", "commands", "command", CommandSpec, command_faults),
    Sort("kt_register_devices", "devices", "device", DeviceSpec, device_faults),
)
RULES = "kt_register_rules"


@dataclass
class Collected:
    """What the registration hooks returned, by hook, and what was wrong with that."""

    items: dict[str, list[Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def typed(self, sort: Sort) -> tuple[Any, ...]:
        """Return the items of the type that the hook promises; others become faults."""
        good = []
        for item in self.items.get(sort.hook, ()):
            if isinstance(item, sort.type):
                good.append(item)
                continue
            what = (
                item.__name__
                if isinstance(item, type)
                else f"a value of type {type(item).__name__}"
            )
            wanted = sort.type.__name__
            self.faults.append(
                f"{sort.hook}() returned {what} where it must return {wanted} objects"
            )
        return tuple(good)


def collect(hooks: Any) -> Collected:
    """Call every registration hook that a plugin implements."""
    collected = Collected()
    for hook in (*(sort.hook for sort in SORTS), RULES):
        caller = getattr(hooks, hook)
        if not caller.get_hookimpls():
            continue
        items, error = isolated(lambda caller=caller: _items(caller()))  # type: ignore[misc]
        if isinstance(error, PluginTimeoutError):
            raise error  # the time is up for all of them
        if error is not None:
            collected.faults.append(f"{hook}() raised {describe(error)}{place(error)}")
        elif isinstance(items, str):
            collected.faults.append(f"{hook}() returned {items}")
        else:
            collected.items[hook] = items or []
    return collected


def claimed(brought: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    """Yield the names in specs that may be malformed."""
    for specs in brought.values():
        for spec in specs:
            aliases = getattr(spec, "aliases", ())
            more = aliases if isinstance(aliases, tuple | list) else ()
            yield from (name for name in (spec.name, *more) if isinstance(name, str))


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
