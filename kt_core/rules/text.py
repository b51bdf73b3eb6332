"""How words of a user's file appear in messages: quoted, on one line, printable."""

from __future__ import annotations

import json
from collections.abc import Iterable

_SHOWN = 80


def show(value: object) -> str:
    """Return ``value`` as it would be written in JSON, escaped and cut to some 80 characters."""
    if isinstance(value, str) and len(value) > _SHOWN:
        value = value[: _SHOWN - 1] + "…"
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 2 * _SHOWN:
        text = text[: 2 * _SHOWN - 1] + "…"
    # json leaves DEL, C1 controls, bidirectional overrides and the like as they are.
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def printable(text: str) -> str:
    """Return ``text`` as it is when it is harmless to print, else escaped and cut."""
    return text if text.isprintable() and len(text) <= 2 * _SHOWN else show(text)[1:-1]


def show_pattern(pattern: str) -> str:
    """Return a pattern in single quotes, where a backslash stands for itself."""
    if pattern.isprintable() and len(pattern) <= 2 * _SHOWN:
        return f"'{pattern}'"
    return show(pattern)


def bare(text: str) -> str:
    """Return a word for a ``help:`` line: as written when that is harmless, else quoted."""
    if text and len(text) <= _SHOWN and text.isprintable():
        return text
    return show(text)


def listed(words: Iterable[str], *, most: int = 12) -> str:
    """Join words with commas; beyond ``most`` only their number is given."""
    known = list(words)
    if len(known) > most:
        known = [*known[:most], f"… ({len(known) - most} more)"]
    return ", ".join(known)


def yaml_string(text: str) -> str:
    """Return ``text`` as a YAML scalar that reads back as the same string."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)
