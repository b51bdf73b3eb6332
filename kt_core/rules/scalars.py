"""What a scalar means: text, a number, true, false or nothing.

YAML 1.1 (PyYAML, KTransformers) and YAML 1.2 (editors, most other tools) read some unquoted words
differently: ``no``, ``010``, ``1:30``, ``1e3``, ``2026-01-01``. A rule file must mean the same to
both, so only what both read alike is taken; for the rest the way to write it is named.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from kt_core.rules.nodes import Scalar


class Kind(enum.StrEnum):
    """The type of a scalar, in a user's words."""

    TEXT = "text"
    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    EMPTY = "empty"
    UNCLEAR = "read differently by YAML 1.1 and 1.2"


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar's type and Python value; for ``UNCLEAR`` why it is unclear and how to write it."""

    kind: Kind
    value: str | int | float | bool | None = None
    why: str = ""
    help: str = ""


_EMPTY = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_WORDS = {
    word: value
    for value, words in ((True, ("yes", "on")), (False, ("no", "off")))
    for lower in words
    for word in (lower, lower.capitalize(), lower.upper())
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
_NUMBER = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{0,30}([eE][-+][0-9]{1,2})?\Z")
_STARTS_LIKE_A_NUMBER = re.compile(r"[-+]?\.?[0-9]|[-+]?\.(inf|nan)\b", re.IGNORECASE)

_OTHER_NUMBERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[-+]?0[0-7_]+\Z"), "an octal number in YAML 1.1 and a decimal one in YAML 1.2"),
    (re.compile(r"[-+]?0[0-9_]+\Z"), "text in YAML 1.1 and a decimal number in YAML 1.2"),
    (re.compile(r"[-+]?0o[0-7]+\Z"), "text in YAML 1.1 and an octal number in YAML 1.2"),
    (re.compile(r"[-+]?0x[0-9a-fA-F_]+\Z"), "a hexadecimal number, which no option here takes"),
    (re.compile(r"[-+]?0b[01_]+\Z"), "a binary number in YAML 1.1 and text in YAML 1.2"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z"),
        "a base-60 number in YAML 1.1 and text in YAML 1.2",
    ),
    (re.compile(r"[-+]?[0-9]+\Z"), "a number of more than 64 bits, which no option here takes"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?\Z"),
        "a number in YAML 1.1 and text in YAML 1.2, or too long",
    ),
    (
        re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?\Z"),
        "a number in YAML 1.2, but text to some YAML 1.1 readers",
    ),
    (re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"), "not a finite number"),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?\Z"),
        "a date in YAML 1.1 and text in YAML 1.2",
    ),
)


def read(node: Scalar) -> Value:
    """Return the meaning of ``node``. Quoted scalars are always text."""
    text = node.text
    if not node.plain:
        return Value(Kind.TEXT, text)
    if text in _EMPTY:
        return Value(Kind.EMPTY)
    if text in _BOOLEAN:
        return Value(Kind.BOOLEAN, _BOOLEAN[text])
    if text in _WORDS:
        meaning = "true" if _WORDS[text] else "false"
        return Value(
            Kind.UNCLEAR,
            _WORDS[text],
            f"{meaning} in YAML 1.1 and the word {text!r} in YAML 1.2".replace("'", '"'),
            f'write {meaning}, or "{text}" for the word',
        )
    if not _STARTS_LIKE_A_NUMBER.match(text):
        return Value(Kind.TEXT, text)
    if _INTEGER.match(text):
        return Value(Kind.INTEGER, int(text))
    if _NUMBER.match(text):
        return Value(Kind.NUMBER, float(text))
    for pattern, why in _OTHER_NUMBERS:
        if pattern.match(text):
            help_ = f'write numbers in plain decimals, and text in quotes: "{text[:40]}"'
            return Value(Kind.UNCLEAR, text, why, help_)
    return Value(Kind.TEXT, text)


def word_boolean(node: Scalar) -> bool | None:
    """Return what ``yes``, ``no``, ``on`` and ``off`` mean to YAML 1.1, else ``None``."""
    return _WORDS.get(node.text) if node.plain else None
