"""The tree a rule file is read into: three node kinds, each with its place in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Scalar:
    """A single value as written. ``plain``: without quotes, so its type depends on its text.

    ``line`` and ``column`` count from 1. A value left empty stands where its key stands.
    ``broken``: a problem with this node has been reported, and what it should have been is not
    known.
    """

    text: str
    plain: bool
    line: int
    column: int
    broken: bool = False


@dataclass(slots=True)
class Sequence:
    """A list."""

    line: int
    column: int
    items: list[Node] = field(default_factory=list)
    broken: bool = False


@dataclass(slots=True)
class Mapping:
    """A mapping. Keys are unique scalars, in the order of the file."""

    line: int
    column: int
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    broken: bool = False


Node = Scalar | Sequence | Mapping


def count(node: Node) -> int:
    """Return how many nodes the tree below ``node`` has, itself included."""
    return sum(1 for _ in _walk(node))


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, Sequence):
            stack.extend(current.items)
        elif isinstance(current, Mapping):
            stack.extend(value for _, value in current.entries.values())


def kind_name(node: Node) -> str:
    """Return what a user calls this node."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    return "a single value" if node.text or not node.plain else "empty"
