"""Changes to the text of a YAML file at known places, so that comments and layout stay.

The places are those of the parser's events. Nothing is written anew but what changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kt_core.rules.nodes import Mapping, Node, Scalar, Sequence
from kt_core.rules.text import yaml_string

_PLAIN = re.compile(r"[A-Za-z_][\w.]*\Z")


@dataclass
class Editor:
    """Collects edits of ``text`` and applies them all at once, from the end to the beginning."""

    text: str
    _spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _braces: dict[tuple[int, int], int] = field(default_factory=dict)
    _edits: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        import yaml

        opened: list[tuple[tuple[int, int], bool]] = []
        for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
            start: Any = event.start_mark
            end: Any = event.end_mark
            place = (start.line + 1, start.column + 1)
            if isinstance(event, yaml.ScalarEvent):
                self._spans[place] = (start.index, end.index)
            elif isinstance(event, yaml.CollectionStartEvent):
                opened.append((place, bool(event.flow_style)))
            elif isinstance(event, yaml.CollectionEndEvent):
                place, flow = opened.pop()
                if flow:  # of a block only its last scalar tells where it ends
                    self._braces[place] = end.index

    def span(self, node: Scalar) -> tuple[int, int]:
        """Where a scalar stands, quotes included."""
        return self._spans[node.line, node.column]

    def rewrite(self, node: Scalar, value: str) -> None:
        """Put another value in a scalar's place, plain where that is safe."""
        start, end = self.span(node)
        self._edits.append((start, end, value if _PLAIN.match(value) else yaml_string(value)))

    def rename(self, key: Scalar, names: tuple[str, ...], value: Node) -> None:
        """Give an entry other keys: the first takes its place, the others are copies below it."""
        start, end = self.span(key)
        self._edits.append((start, end, names[0]))
        _, stop = self._extent(value, key)
        for name in names[1:]:
            copied = f"{name}{self.text[end:stop]}"
            flow = self._in_flow(key)
            indent = "\n" + " " * (start - self._line_start(start))
            self._edits.append((stop, stop, f", {copied}" if flow else indent + copied))

    def remove(self, mapping: Mapping, keys: list[str]) -> None:
        """Take entries out of a mapping, of which others stay."""
        for text in keys:
            key, value = mapping.entries[text]
            start, _ = self.span(key)
            _, stop = self._extent(value, key)
            if self._in_flow(key):
                after = re.compile(r"\s*,\s*").match(self.text, stop)
                before = re.search(r"\s*,\s*\Z", self.text[:start])
                if after:
                    stop = after.end()
                elif before:
                    start = before.start()
                self._edits.append((start, stop, ""))
            else:
                self._edits.append((self._line_start(start), self._line_end(stop), ""))

    def remove_entry(self, mapping: Mapping, key: str) -> None:
        """Take one entry out."""
        self.remove(mapping, [key])

    def comment_out(self, node: Node, reason: str) -> None:
        """Turn the lines of a list's item into comments, below a line that says why."""
        start, stop = self._extent(node, None)
        first = self._line_start(start)
        dash = self.text.index("-", first, start + 1)
        margin = " " * (dash - first)
        lines = self.text[first : self._line_end(stop)].splitlines(keepends=True)
        commented = "".join(f"{margin}# {line[len(margin) :]}" for line in lines)
        self._edits.append((first, self._line_end(stop), f"{margin}# {reason}\n{commented}"))

    def insert_above(self, node: Node, lines: str) -> None:
        """Put whole lines above the one that ``node`` begins in."""
        start, _ = self._extent(node, None)
        first = self._line_start(start)
        self._edits.append((first, first, lines))

    def apply(self) -> str:
        """The text with all edits. An edit inside another, larger one is dropped."""
        text = self.text
        kept: list[tuple[int, int, str]] = []
        for edit in sorted(self._edits, key=lambda e: e[1] - e[0], reverse=True):
            start, stop, _ = edit
            if not any(k[0] <= start and stop <= k[1] and not start == stop == k[0] for k in kept):
                kept.append(edit)
        for start, stop, new in sorted(kept, reverse=True):
            text = text[:start] + new + text[stop:]
        return text

    def _extent(self, node: Node, key: Scalar | None) -> tuple[int, int]:
        """From the first scalar in ``node`` to behind the last one, or the brace that closes it.

        Of an empty value that is its key's colon.
        """
        spans: list[tuple[int, int]] = []
        for inner in _nodes(node):
            place = (inner.line, inner.column)
            if isinstance(inner, Scalar) and place in self._spans:
                spans.append(self._spans[place])
            elif not isinstance(inner, Scalar) and place in self._braces:
                spans.append((self._braces[place], self._braces[place]))
        if key is not None:
            start, end = self.span(key)
            spans.append((start, self.text.index(":", end) + 1))
        return min(s for s, _ in spans), max(e for _, e in spans)

    def _line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def _line_end(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end + 1

    def _in_flow(self, key: Scalar) -> bool:
        """Whether braces stand around an entry: then something else stands before it in its line."""
        start, _ = self.span(key)
        return bool(self.text[self._line_start(start) : start].strip(" -"))


def _nodes(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, Sequence):
            stack.extend(current.items)
        elif isinstance(current, Mapping):
            for key, value in current.entries.values():
                stack += [key, value]
