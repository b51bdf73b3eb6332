"""Checks of the JSON schemas that plugins bring, so that using them later is safe and fast.

A plugin's schema describes a few keyword arguments. It is held to the part of draft 2020-12 that
this needs: every keyword is known and has the right shape, references stay inside the schema and
never run in a circle, patterns cannot run away, and the whole is of a sane size. What passes here
is well-formed in the eyes of ``jsonschema`` too (a test says so); checking it here takes
microseconds, where the meta-schema takes milliseconds for each operator on every start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

MAX_DEPTH: Final = 24
MAX_NODES: Final = 5_000
"""Subschemas, each ``$ref`` counted as often as it is followed."""
MAX_PATTERN: Final = 200
MAX_UNIQUE_ITEMS: Final = 256

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SCHEMA = frozenset({"additionalProperties", "contains", "else", "if", "items", "not", "then"})
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset({"$defs", "dependentSchemas", "patternProperties", "properties"})
_COUNTS = frozenset(
    {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
)
_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_TEXTS = frozenset({"$comment", "$schema", "$id", "description", "format", "title"})
_FLAGS = frozenset({"deprecated", "readOnly", "uniqueItems", "writeOnly"})
_VALUES = frozenset({"const", "default"})
_LISTS = frozenset({"enum", "examples"})
KEYWORDS: Final = (
    _SCHEMA
    | _SCHEMA_LISTS
    | _SCHEMA_MAPS
    | _COUNTS
    | _NUMBERS
    | _TEXTS
    | _FLAGS
    | _VALUES
    | _LISTS
    | {"$ref", "pattern", "required", "type"}
)
"""The keywords a plugin's schema may use, besides those that start with ``x-``."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_faults(schema: object) -> list[str]:
    """Return what is wrong with a kwargs or options schema, as phrases; empty when it is sound."""
    if not isinstance(schema, Mapping):
        return [f"is {type(schema).__name__}, not a JSON schema object"]
    if schema.get("type") != "object":
        return ['must say "type": "object": it describes keyword arguments']
    checker = _Checker(schema)
    faults = list(checker.check(schema, "", 0))
    return faults or list(checker.check_references())


class _Checker:
    """One walk over one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.nodes = 0
        self.references: list[tuple[str, str]] = []

    def check(self, schema: object, path: str, depth: int) -> Iterator[str]:
        """Yield the faults of ``schema``, which stands at the JSON pointer ``path``."""
        self.nodes += 1
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            yield f"{_at(path)}a schema must be an object or a boolean, not {_kind(schema)}"
        elif depth > MAX_DEPTH:
            yield f"{_at(path)}nested more than {MAX_DEPTH} deep"
        elif self.nodes > MAX_NODES:
            if self.nodes == MAX_NODES + 1:
                yield f"has more than {MAX_NODES} subschemas"
        else:
            for key, value in schema.items():
                yield from self._keyword(schema, key, value, path, depth)

    def _keyword(
        self, schema: Mapping[str, Any], key: object, value: Any, path: str, depth: int
    ) -> Iterator[str]:
        if not isinstance(key, str):
            yield f"{_at(path)}the key {key!r} is not a string"
            return
        here = f"{path}/{key}"
        if key in _SCHEMA:
            yield from self.check(value, here, depth + 1)
        elif key in _SCHEMA_LISTS:
            if not isinstance(value, list | tuple) or not value:
                yield f"{_at(here)}must be a list of schemas with at least one entry"
                return
            for index, item in enumerate(value):
                yield from self.check(item, f"{here}/{index}", depth + 1)
        elif key in _SCHEMA_MAPS:
            yield from self._schema_map(key, value, here, depth)
        elif key == "$ref":
            if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
                yield f'{_at(here)}{value!r} leads outside the schema; only "#/…" is allowed'
            else:
                self.references.append((here, value))
        elif key == "pattern":
            fault = pattern_fault(value)
            if fault:
                yield f"{_at(here)}{fault}"
        else:
            fault = _plain_keyword_fault(schema, key, value)
            if fault:
                yield f"{_at(here)}{fault}"

    def _schema_map(self, key: str, value: object, here: str, depth: int) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{_at(here)}must be an object of schemas, not {_kind(value)}"
            return
        for name, item in value.items():
            if not isinstance(name, str):
                yield f"{_at(here)}the key {name!r} is not a string"
                continue
            fault = pattern_fault(name) if key == "patternProperties" else None
            if fault:
                yield f"{_at(here)}{fault}"
            yield from self.check(item, f"{here}/{name}", depth + 1)

    def check_references(self) -> Iterator[str]:
        """Yield references that lead nowhere, run in a circle or blow the schema up."""
        for place, target in self.references:
            if not isinstance(self._resolve(target), Mapping | bool):
                yield f"{_at(place)}{target!r} does not exist in the schema"
                return
        sizes: dict[str, int] = {}
        try:
            total = self._size(self.root, sizes, ())
        except _CircleError as error:
            yield f"{error.target!r} refers to itself; kwargs need no recursive schema"
            return
        if total > MAX_NODES:
            yield f"has more than {MAX_NODES} subschemas once its references are followed"

    def _resolve(self, target: str) -> object:
        node: object = self.root
        for part in target.split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and step in node:
                node = node[step]
            elif isinstance(node, list | tuple) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            else:
                return None
        return node

    def _size(self, node: object, sizes: dict[str, int], trail: tuple[str, ...]) -> int:
        """Count the nodes below ``node`` with references followed, each target counted once."""
        if isinstance(node, list | tuple):
            return sum(self._size(item, sizes, trail) for item in node)
        if not isinstance(node, Mapping):
            return 0
        total = 1 + sum(
            self._size(value, sizes, trail)
            for key, value in node.items()
            if key not in _VALUES and key not in _LISTS
        )
        target = node.get("$ref")
        if isinstance(target, str):
            if target in trail:
                raise _CircleError(target)
            if target not in sizes:
                sizes[target] = self._size(self._resolve(target), sizes, (*trail, target))
            total += sizes[target]
        return total


class _CircleError(Exception):
    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__(target)


def _plain_keyword_fault(schema: Mapping[str, Any], key: str, value: Any) -> str | None:
    """Return what is wrong with a keyword that holds no subschema."""
    if key == "type":
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not names or not _all_in(names, _TYPES):
            return f"{value!r} is not a type, or a list of them: {', '.join(sorted(_TYPES))}"
        return "names a type twice" if len(set(names)) != len(names) else None
    if key == "required":
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            return "must be a list of property names"
        return "names a property twice" if len(set(value)) != len(value) else None
    if key in _COUNTS:
        sound = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if sound else f"must be a whole number from 0, not {value!r}"
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, not {value!r}"
        if not math.isfinite(value) or (key == "multipleOf" and value <= 0):
            return f"{value!r} is not possible here"
        return None
    if key in _TEXTS:
        if not isinstance(value, str):
            return f"must be text, not {_kind(value)}"
        if key == "$schema" and value.rstrip("#") != DIALECT:
            return f"{value!r} is not draft 2020-12, which is {DIALECT}"
        return "is not supported: a schema of kwargs has no address" if key == "$id" else None
    if key in _FLAGS:
        if not isinstance(value, bool):
            return f"must be true or false, not {value!r}"
        return _unique_items_fault(schema) if key == "uniqueItems" and value else None
    if key in _VALUES or key.startswith("x-"):
        return _value_fault(value)
    if key in _LISTS:
        if not isinstance(value, list | tuple) or (key == "enum" and not value):
            return "must be a list of values with at least one entry"
        return _value_fault(list(value))
    from kt_core.rules.suggest import did_you_mean

    near = did_you_mean(key, sorted(KEYWORDS))
    return "is not a keyword that kt knows" + (f'; did you mean "{near}"?' if near else "")


def _unique_items_fault(schema: Mapping[str, Any]) -> str | None:
    """Comparing every item with every other is only cheap for few of them, or for scalars."""
    items = schema.get("items")
    scalar = isinstance(items, Mapping) and items.get("type") in ("integer", "number", "string")
    limit = schema.get("maxItems")
    if scalar or (isinstance(limit, int) and limit <= MAX_UNIQUE_ITEMS):
        return None
    return f'needs "maxItems" of at most {MAX_UNIQUE_ITEMS}, or items of one scalar type'


def _value_fault(value: object, depth: int = 0) -> str | None:
    """Return why ``value`` is not plain JSON."""
    if value is None or isinstance(value, str | bool | int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value!r} is not a JSON value"
    if depth > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} deep"
    if isinstance(value, list | tuple):
        return next(filter(None, (_value_fault(item, depth + 1) for item in value)), None)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return "has a key that is not a string"
        return next(filter(None, (_value_fault(v, depth + 1) for v in value.values())), None)
    return f"{_kind(value)} is not a JSON value"


def pattern_fault(pattern: object) -> str | None:
    """Return why a regular expression of a schema is refused, or ``None``.

    Refused are patterns that do not compile, are long, or belong to the shapes that can take
    exponential time: a repeated group that itself repeats or branches, and back-references. Three
    and more unbounded repeats are refused as well: each one adds a power to the worst case.
    """
    if not isinstance(pattern, str):
        return f"a pattern must be text, not {_kind(pattern)}"
    if len(pattern) > MAX_PATTERN:
        return f"the pattern is longer than {MAX_PATTERN} characters"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"the pattern {pattern!r} does not compile: {error}"
    return _explosive_shape(pattern)


def _explosive_shape(pattern: str) -> str | None:
    """Judge a pattern that compiles by its tokens; errs on the side of refusing."""
    varies = [False]  # per open group: does it contain a repeat or a branch?
    closed = False  # did the last token close a group that varies?
    unbounded = 0
    for token in _tokens().finditer(pattern):
        kind, text = token.lastgroup, token.group()
        if kind == "backref":
            return (
                f"the pattern {pattern!r} refers back to a group, which can take exponential time"
            )
        if kind == "repeat" and closed:
            return (
                f"the pattern {pattern!r} repeats a group that itself repeats or branches, "
                "which can take exponential time"
            )
        closed = False
        if kind == "open":
            varies.append(False)
        elif kind == "close" and len(varies) > 1:
            closed = varies.pop()
            varies[-1] = varies[-1] or closed
        elif kind in ("repeat", "branch"):
            varies[-1] = True
            unbounded += text in "*+" or text.endswith(",}")
    return f"the pattern {pattern!r} has more than two unbounded repeats" if unbounded > 2 else None


@cache
def _tokens() -> re.Pattern[str]:
    return re.compile(
        r"""(?P<klass>\[\^?\]?(?:\\.|[^\]\\])*\])   # a character class is one atom
          | (?P<backref>\\[1-9]|\(\?P=)
          | (?P<escape>\\.)
          | (?P<open>\(\??)                         # the ? of (?: and its kin repeats nothing
          | (?P<close>\))
          | (?P<repeat>[*+]|\{\d+(?:,\d*)?\}|\{,\d+\})
          | (?P<branch>\|)
          | (?P<other>.)""",
        re.VERBOSE | re.DOTALL,
    )


def _all_in(names: Sequence[object], allowed: frozenset[str]) -> bool:
    return all(isinstance(name, str) and name in allowed for name in names)


def _kind(value: object) -> str:
    return type(value).__name__


def _at(path: str) -> str:
    return f"at {path}: " if path else ""
