"""Checks of what a plugin registers: specs are data, so nothing need be imported for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kt_core.registry.known import DISTRIBUTION_OF_ALIAS, DISTRIBUTION_OF_PACKAGE
from kt_core.registry.schemas import schema_faults
from kt_core.registry.specs import (
    AliasSpec,
    ArchitectureSpec,
    CommandSpec,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
)

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


def alias_faults(spec: AliasSpec, package: str, distribution: str) -> Iterator[str]:
    """Yield what is wrong with a further name that ``distribution`` gives to something."""
    if not _is_dotted(spec.name):
        yield f"name {spec.name!r} is not of the form word or package.word"
        return
    yield from _alias_faults((spec.name,), package, distribution)
    if not _is_dotted(spec.stands_for):
        yield f"stands_for {spec.stands_for!r} is not the name of an operator or kernel"
    if spec.what not in ("operator", "kernel"):
        yield f'what must be "operator" or "kernel", not {spec.what!r}'


def architecture_faults(spec: ArchitectureSpec, package: str, distribution: str) -> Iterator[str]:
    """Yield what is wrong with a model family of ``distribution`` with the import ``package``."""
    yield from _own_name(spec.name, package)
    yield from _target(spec.target)
    yield from _summary(spec.summary)
    if not isinstance(spec.gguf, str) or not spec.gguf.strip():
        yield "gguf must be the file's general.architecture"
    yield from _words(spec.architectures, "architectures", _is_dotted, some=True)
    yield from _words(spec.model_types, "model_types", lambda word: isinstance(word, str))


def command_faults(spec: CommandSpec, package: str, distribution: str) -> Iterator[str]:
    """Yield what is wrong with a command of ``distribution`` with the import ``package``."""
    from kt_core.cli.table import COMMANDS

    words = spec.name.split("-") if isinstance(spec.name, str) else [""]
    if not all(_is_word(word) for word in words):
        yield f"name {spec.name!r} is not of the form word or word-word, in lower case"
    elif spec.name in COMMANDS or spec.name == "help":
        yield f'"kt {spec.name}" is a command of kt itself'
    if not _is_dotted(spec.module):
        yield f"module {spec.module!r} is not of the form package.module"
    elif package and spec.module.partition(".")[0] != package:
        yield f'module "{spec.module}" lies outside the plugin\'s own package "{package}"'
    yield from _summary(spec.summary)


def device_faults(spec: DeviceSpec, package: str, distribution: str) -> Iterator[str]:
    """Yield what is wrong with a kind of devices."""
    if not _is_word(spec.name):
        yield f"name {spec.name!r} is not a lower-case word"
    yield from _target(spec.target)
    yield from _summary(spec.summary)


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


def claims_of(field: str, spec: Any) -> Iterator[tuple[str, str]]:
    """Yield what a spec of the record's ``field`` lays claim to: a sort of thing, and its name."""
    if field in ("operators", "kernels"):
        yield from ((field.removesuffix("s"), name) for name in names_of(spec))
    elif field == "aliases":
        yield spec.what, spec.name
    elif field == "architectures":
        yield "architecture", spec.gguf
        yield from (("model class", name) for name in spec.architectures)
    elif field in ("commands", "devices"):
        yield field.removesuffix("s"), spec.name


def twice_in(brought: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    """Yield names that one plugin uses for two of the things it brings."""
    seen: dict[tuple[str, str], str] = {}
    for field, specs in brought.items():
        for spec in specs:
            for claim in claims_of(field, spec):
                what, name = claim
                if claim in seen:
                    yield f'{what}s "{seen[claim]}" and "{spec.name}" both use the name "{name}"'
                seen[claim] = spec.name


def _common_faults(spec: Spec, package: str, distribution: str) -> Iterator[str]:
    yield from _own_name(spec.name, package)
    yield from _target(spec.target)
    yield from _summary(spec.summary)
    yield from _words(spec.aliases, "aliases", _is_dotted)
    yield from _alias_faults(spec.aliases, package, distribution)


def _own_name(name: Any, package: str) -> Iterator[str]:
    if not _is_dotted(name) or "." not in name:
        yield f"name {name!r} is not of the form package.word"
    elif package and name.partition(".")[0] != package:
        yield f'name "{name}" must start with the plugin\'s own package: "{package}."'


def _target(target: Any) -> Iterator[str]:
    if not _is_target(target):
        yield f"target {target!r} is not of the form package.module:Class"


def _summary(summary: Any) -> Iterator[str]:
    if not isinstance(summary, str) or not summary.strip() or "\n" in summary:
        yield "summary must be one line of text"


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
