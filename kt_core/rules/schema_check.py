"""Values against a plugin's JSON schema: every violation, with the place inside the value.

Most schemas of options use a handful of keywords, which are checked here in microseconds. For the
rest ``jsonschema`` is imported, which takes longer than everything else ``kt-validate`` does; a
test holds the two to the same verdicts. The schema itself was checked when its plugin was
registered (:mod:`kt_core.registry.schemas`): it is small, refers to nothing outside itself and its
patterns cannot run away. Nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cache
from typing import Any

from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, listed, show

Path = tuple[str | int, ...]

UNKNOWN = "is not known here"


@dataclass(frozen=True)
class Violation:
    """``path`` leads to the value at fault; ``message`` continues a sentence about it."""

    path: Path
    message: str
    help: str | None = None


_IGNORED = frozenset(
    {
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "format",
        "readOnly",
    }
    | {"title", "writeOnly"}
)
_TYPE_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "empty",
    "array": "a list",
    "object": "a mapping",
}


def check(value: Any, schema: Mapping[str, Any]) -> list[Violation]:
    """Return how ``value`` (plain data, string keys) departs from ``schema`` (draft 2020-12)."""
    if _simple(schema):
        return list(_walk(value, schema, ()))
    return list(_full(value, schema))


def _simple(schema: Any) -> bool:
    """Whether this module knows every keyword of ``schema``."""
    if isinstance(schema, bool):
        return True
    for key, value in schema.items():
        if key in ("properties",):
            if not all(map(_simple, value.values())):
                return False
        elif key in ("items", "additionalProperties"):
            if not _simple(value):
                return False
        elif key not in _CHECKS and key not in _IGNORED and not key.startswith("x-"):
            return False
    return True


def _walk(value: Any, schema: Any, path: Path) -> Iterator[Violation]:
    if schema is True:
        return
    if schema is False:
        yield Violation(path, "is not allowed", "delete it")
        return
    types = schema.get("type")
    if types is not None and not _is_a(value, types):
        yield Violation(path, f"must be {_types_text(types)}, not {shown(value)}")
        return
    for key, expected in schema.items():
        checker = _CHECKS.get(key)
        message = checker(value, expected) if checker is not None else None
        if message is not None:
            yield Violation(path, message)
    if isinstance(value, Mapping):
        yield from _properties(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from _walk(item, schema["items"], (*path, i))


def _properties(
    value: Mapping[str, Any], schema: Mapping[str, Any], path: Path
) -> Iterator[Violation]:
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            yield from _walk(item, known[name], (*path, name))
        elif rest is False:
            yield _unknown(path, name, known)
        else:
            yield from _walk(item, rest, (*path, name))


def _unknown(path: Path, name: str, known: Mapping[str, Any]) -> Violation:
    near = did_you_mean(name, known)
    text = f"{UNKNOWN} (known: {listed(known) or 'nothing'})"
    return Violation((*path, name), text, f"{near}: …" if near else f"delete {bare(name)}")


def _is_a(value: Any, types: str | Sequence[str]) -> bool:
    names = (types,) if isinstance(types, str) else types
    return any(_TYPE_TESTS[name](value) for name in names)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPE_TESTS: Mapping[str, Any] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: _number(v) and float(v).is_integer(),
    "number": _number,
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, Mapping),
}


def _types_text(types: str | Sequence[str]) -> str:
    names = (types,) if isinstance(types, str) else types
    return " or ".join(_TYPE_WORDS[name] for name in names)


def _equal(a: Any, b: Any) -> bool:
    """JSON's equality: 1 equals 1.0, but true does not equal 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _enum(value: Any, allowed: Sequence[Any]) -> str | None:
    if any(_equal(value, item) for item in allowed):
        return None
    texts = [show(item) for item in allowed]
    wanted = texts[0] if len(texts) == 1 else f"one of {listed(texts)}"
    return f"must be {wanted}, not {shown(value)}"


def _bound(holds: Any, words: str) -> Any:
    def check_bound(value: Any, limit: float) -> str | None:
        if not _number(value) or holds(value, limit):
            return None
        return f"must be {words} {show(limit)}, not {shown(value)}"

    return check_bound


def _length(kind: type[Sized], fits: Any, words: str) -> Any:
    def check_length(value: Any, limit: int) -> str | None:
        if not isinstance(value, kind) or fits(len(value), limit):
            return None
        return f"must have {words.format(limit)}, not {len(value)}"

    return check_length


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _pattern(value: Any, pattern: str) -> str | None:
    if not isinstance(value, str) or _compiled(pattern).search(value):
        return None
    return f"must fit the pattern {show(pattern)}, which {shown(value)} does not"


def _required(value: Any, names: Sequence[str]) -> str | None:
    if not isinstance(value, Mapping):
        return None
    missing = [name for name in names if name not in value]
    return f"needs {listed(missing)}" if missing else None


def _nothing(value: Any, expected: Any) -> None:
    """Handled by ``_walk`` itself."""


_AT_LEAST = int.__ge__
_AT_MOST = int.__le__
_CHECKS: Mapping[str, Any] = {
    "type": _nothing,
    "properties": _nothing,
    "additionalProperties": _nothing,
    "items": _nothing,
    "required": _required,
    "enum": _enum,
    "const": lambda value, expected: _enum(value, (expected,)),
    "minimum": _bound(lambda v, limit: v >= limit, "at least"),
    "maximum": _bound(lambda v, limit: v <= limit, "at most"),
    "exclusiveMinimum": _bound(lambda v, limit: v > limit, "more than"),
    "exclusiveMaximum": _bound(lambda v, limit: v < limit, "less than"),
    "minLength": _length(str, _AT_LEAST, "at least {} characters"),
    "maxLength": _length(str, _AT_MOST, "at most {} characters"),
    "minItems": _length(list, _AT_LEAST, "at least {} items"),
    "maxItems": _length(list, _AT_MOST, "at most {} items"),
    "minProperties": _length(dict, _AT_LEAST, "at least {} keys"),
    "maxProperties": _length(dict, _AT_MOST, "at most {} keys"),
    "pattern": _pattern,
}


def shown(value: Any) -> str:
    """Return a value for a message; lists and mappings by their kind."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, Mapping):
        return "a mapping"
    return "empty" if value is None else show(value)


# --- everything else ------------------------------------------------------------------------------


def _full(value: Any, schema: Mapping[str, Any]) -> Iterator[Violation]:
    import jsonschema
    import referencing

    # Without an explicit registry jsonschema would fetch a remote reference.
    validator = jsonschema.Draft202012Validator(
        schema, registry=referencing.Registry(), format_checker=None
    )
    for error in sorted(
        validator.iter_errors(value), key=lambda e: list(map(str, e.absolute_path))
    ):
        yield from _of_error(error)


def _of_error(error: Any) -> Iterator[Violation]:
    """Name what is wrong in our words; of alternatives, the one that came nearest."""
    path = tuple(error.absolute_path)
    keyword, expected, value = error.validator, error.validator_value, error.instance
    if keyword in ("anyOf", "oneOf") and error.context:
        yield from _alternatives(error, path)
        return
    if keyword == "additionalProperties" and expected is False:
        known = error.schema.get("properties", {})
        patterns = error.schema.get("patternProperties", {})
        for name in value:
            if name not in known and not any(_compiled(p).search(name) for p in patterns):
                yield _unknown(path, name, known)
        return
    yield Violation(path, _message(error))


def _alternatives(error: Any, path: Path) -> Iterator[Violation]:
    """Report the one alternative that got further than this very value, or name them all."""
    branches: dict[Any, list[Any]] = {}
    for inner in error.context:
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    for inners in branches.values():
        if all(inner.relative_path for inner in inners):
            for inner in inners:
                yield from _of_error(inner)
            return
    ending = f", not {shown(error.instance)}"
    wanted = dict.fromkeys(_message(inner).removesuffix(ending) for inner in error.context)
    yield Violation(path, " or ".join(wanted) + ending)


def _message(error: Any) -> str:
    keyword, expected, value = error.validator, error.validator_value, error.instance
    if keyword == "type":
        return f"must be {_types_text(expected)}, not {shown(value)}"
    message = _CHECKS[keyword](value, expected) if keyword in _CHECKS else None
    return message or f"does not fit its schema: {str(error.message)[:200]}"
