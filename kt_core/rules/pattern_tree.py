"""A reader for the everyday part of regular expressions, so that patterns can be reasoned about.

It knows literals, sets, ``.``, groups, alternatives, repeats, ``^``, ``$`` and lookaheads. For
anything else (back references, flags, lookbehind, …) it returns ``None``, and whoever asked has to
treat the pattern as opaque. It never decides whether a pattern is valid: ``re`` has done that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

INFINITE = 1 << 30
DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACE = frozenset(" \t\n\r\f\v")
_CLASSES = {"d": DIGITS, "w": _WORD, "s": _SPACE}
_ASCII = frozenset(map(chr, range(128)))
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Literal:
    """One character that must be there."""

    char: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set, of which ``ascii`` is the part within ASCII; ``any`` is ``.``."""

    ascii: frozenset[str]
    any: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """``^`` or ``$``."""

    char: str


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives, each a sequence of items."""

    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead."""

    branches: tuple[Branch, ...]
    negative: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` so many times."""

    item: Item
    least: int
    most: int


Item = Literal | Chars | Edge | Group | Look | Repeat
Branch = tuple["Item", ...]


@lru_cache(maxsize=4096)
def parse(pattern: str) -> tuple[Branch, ...] | None:
    """Return the alternatives of a valid pattern, or ``None`` if it holds anything unusual.

    Plain groups around a whole alternative, or between other items, are dissolved, as they do not
    change what matches.
    """
    reader = _Reader(pattern)
    try:
        branches = reader.alternatives(0)
    except _UnusualError:
        return None
    if reader.position != len(pattern):
        return None
    return _flatten(branches)


def _flatten(branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
    found: list[Branch] = []
    for branch in branches:
        items: list[Item] = []
        for item in branch:
            if isinstance(item, Group) and len(item.branches) == 1:
                items.extend(item.branches[0])
            else:
                items.append(item)
        if len(items) == 1 and isinstance(items[0], Group):
            found.extend(_flatten(items[0].branches))
        else:
            found.append(tuple(items))
    return tuple(found)


class _UnusualError(Exception):
    """The pattern uses something this reader does not know."""


_BOUNDS = re.compile(r"\{([0-9]{0,6})(,?)([0-9]{0,6})\}")


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _UnusualError
        self.position += 1
        return char

    def alternatives(self, depth: int) -> tuple[Branch, ...]:
        if depth > _MAX_DEPTH:
            raise _UnusualError
        branches: list[Branch] = []
        items: list[Item] = []
        while (char := self._peek()) not in ("", ")"):
            if char == "|":
                self.position += 1
                branches.append(tuple(items))
                items = []
                continue
            item = self._item(depth)
            items.append(self._repeated(item))
        branches.append(tuple(items))
        return tuple(branches)

    def _item(self, depth: int) -> Item:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._set()
        if char == ".":
            return Chars(_ASCII - {"\n"}, any=True)
        if char in "^$":
            return Edge(char)
        if char == "\\":
            return self._escape()
        return Literal(char)

    def _group(self, depth: int) -> Item:
        look: bool | None = None
        if self._peek() == "?":
            kind = self.text[self.position : self.position + 2]
            if kind not in ("?:", "?=", "?!"):
                raise _UnusualError
            self.position += 2
            look = None if kind == "?:" else kind == "?!"
        branches = _flatten(self.alternatives(depth + 1))
        if self._take() != ")":
            raise _UnusualError
        return Group(branches) if look is None else Look(branches, look)

    def _escape(self) -> Literal | Chars:
        char = self._take()
        if char in _CLASSES:
            return Chars(_CLASSES[char])
        if char.lower() in _CLASSES:
            return Chars(_ASCII - _CLASSES[char.lower()])
        if char.isalnum():
            raise _UnusualError
        return Literal(char)

    def _set(self) -> Chars:
        negated = self._peek() == "^"
        self.position += negated
        chars: set[str] = set()
        first = True
        while (char := self._take()) != "]" or first:
            first = False
            if char == "[":
                raise _UnusualError  # the regex module may read a nested set here
            low = self._set_item(char)
            if isinstance(low, frozenset):
                chars |= low
                continue
            if self._peek() == "-" and self.text[self.position + 1 : self.position + 2] not in (
                "]",
                "",
            ):
                self.position += 1
                high = self._set_item(self._take())
                if isinstance(high, frozenset):
                    raise _UnusualError
                chars |= {chr(code) for code in range(ord(low), min(ord(high), 127) + 1)}
            else:
                chars.add(low)
        found = frozenset(chars) & _ASCII
        return Chars(_ASCII - found if negated else found)

    def _set_item(self, char: str) -> str | frozenset[str]:
        if char != "\\":
            return char
        escaped = self._escape()
        return escaped.char if isinstance(escaped, Literal) else escaped.ascii

    def _repeated(self, item: Item) -> Item:
        char = self._peek()
        bounds = {"*": (0, INFINITE), "+": (1, INFINITE), "?": (0, 1)}.get(char)
        if char == "{":
            found = _BOUNDS.match(self.text, self.position)
            if found is None or found[0] == "{}":
                raise _UnusualError
            least = int(found[1] or 0)
            most = int(found[3] or INFINITE) if found[2] else least
            if not found[2] and not found[1]:
                raise _UnusualError
            bounds = (least, most)
            self.position = found.end()
        elif bounds is None:
            return item
        else:
            self.position += 1
        if isinstance(item, Edge | Look):
            raise _UnusualError
        suffix = self._peek()
        if suffix == "+":
            raise _UnusualError  # possessive
        self.position += suffix == "?"
        return Repeat(item, *bounds)
