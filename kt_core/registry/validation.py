"""Checks of what a plugin registers: specs are data, so nothing need be imported for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kt_core.registry.known import DISTRIBUTION_OF_ALIAS, DISTRIBUTION_OF_PACKAGE
from kt_core.registry.schemas import schema_faults
from kt_core.registry.specs import KernelSpec, OperatorSpec

Spec = OperatorSpec | KernelSpec

RESERVED = frozenset({"default"})
"""Words that mean something else where a rule file names an operator."""


def operator_faults(spec: OperatorSpec, package: str, distribution: str) -> Iterator[str]:
    """Yield what is wrong with an operator of ``distribution`` with the import ``package``."""
    yield from _common_faults(spec, package, distribution)
    yield from _words(spec.replaces, "replaces", _is_dotted)
    if spec.kernel_kind is not None and not _is_word(spec.kernel_kind):
        yield f"kernel_kind {spec.kernel_kind!r} is not a lower-case word"
    yield from (f"kwargs_schema {fault}" for fault in schema_faults(spec.kwargs_schema))


def kernel_faults(spec: KernelSpec, package: str, distribution: str) -> Iterator[str]:
    """Yield what is wrong with a kernel of ``distribution`` with the import ``package``."""
    yield from _common_faults(spec, package, distribution)
    if not _is_word(spec.kind):
        yield f"kind {spec.kind!r} is not a lower-case word"
    yield from _words(spec.devices, "devices", _is_word, some=True)
    yield from _words(spec.weight_formats, "weight_formats", _is_format, some=True)
    yield from (f"options_schema {fault}" for fault in schema_faults(spec.options_schema))


def rule_resource(text: object, package: str) -> tuple[str, str] | str:
    """Split ``package:path/inside/it.yaml``; a string is the reason why it is refused."""
    owner, colon, path = text.partition(":") if isinstance(text, str) else ("", "", "")
    parts = path.split("/")
    sound = all(part not in ("", ".", "..") and "\\" not in part for part in parts)
    if not (colon and _is_dotted(owner) and sound and path.endswith((".yaml", ".yml"))):
        return f"the rule file {text!r} is not written as package:path/inside/it.yaml"
    if package and owner.partition(".")[0] != package:
        return f'the rule file "{text}" lies outside the plugin\'s own package "{package}"'
    return owner, path


def names_of(spec: Spec) -> tuple[str, ...]:
    """Return the name and the aliases of a spec."""
    return (spec.name, *spec.aliases)


def twice_in(specs: Mapping[str, tuple[Spec, ...]]) -> Iterator[str]:
    """Yield names that one plugin uses for two of its operators, or two of its kernels."""
    for what, group in specs.items():
        seen: dict[str, str] = {}
        for spec in group:
            for name in names_of(spec):
                if name in seen:
                    yield f'{what} "{seen[name]}" and "{spec.name}" both use the name "{name}"'
                seen[name] = spec.name


def _common_faults(spec: Spec, package: str, distribution: str) -> Iterator[str]:
    if not _is_dotted(spec.name) or "." not in spec.name:
        yield f"name {spec.name!r} is not of the form package.word"
    elif package and spec.name.partition(".")[0] != package:
        yield f'name "{spec.name}" must start with the plugin\'s own package: "{package}."'
    if not _is_target(spec.target):
        yield f"target {spec.target!r} is not of the form package.module:Class"
    if not isinstance(spec.summary, str) or not spec.summary.strip() or "\n" in spec.summary:
        yield "summary must be one line of text"
    yield from _words(spec.aliases, "aliases", _is_dotted)
    yield from _alias_faults(spec.aliases, package, distribution)


def _alias_faults(aliases: Any, package: str, distribution: str) -> Iterator[str]:
    words = aliases if isinstance(aliases, tuple | list) else ()
    for alias in (word for word in words if isinstance(word, str)):
        if alias in RESERVED:
            yield f'alias "{alias}" has a meaning of its own in rule files'
        owner = DISTRIBUTION_OF_ALIAS.get(alias)
        if "." in alias:
            owner = owner or DISTRIBUTION_OF_PACKAGE.get(alias.partition(".")[0])
        if package and owner is not None and owner != distribution:
            yield f'alias "{alias}" is reserved for {owner}'


def _words(
    value: Any, name: str, allowed: Callable[[object], bool], *, some: bool = False
) -> Iterator[str]:
    """Yield faults of a tuple of words, each of which must be ``allowed``."""
    if not isinstance(value, tuple | list):
        yield f"{name} must be a tuple of strings, not {type(value).__name__}"
        return
    if some and not value:
        yield f"{name} must not be empty"
    for word in value:
        if not allowed(word):
            yield f"{name} holds {word!r}, which is not allowed there"
    if len({repr(word) for word in value}) != len(value):
        yield f"{name} names something twice"


def _is_dotted(text: object) -> bool:
    """``package.module.Name``: ASCII identifiers with dots between."""
    return (
        isinstance(text, str)
        and text.isascii()
        and all(part.isidentifier() for part in text.split("."))
    )


def _is_target(text: object) -> bool:
    module, colon, path = text.partition(":") if isinstance(text, str) else ("", "", "")
    return bool(colon) and _is_dotted(module) and _is_dotted(path)


def _is_word(text: object) -> bool:
    return _is_dotted(text) and isinstance(text, str) and "." not in text and text == text.lower()


def _is_format(text: object) -> bool:
    return text == "*" or (
        isinstance(text, str) and text.isascii() and text.replace("_", "a").isalnum()
    )
