"""Bytes to a tree of nodes, strictly: one way to write each thing, and every node has a place.

YAML allows far more than a rule file needs: references that make a small file huge, merge keys,
tags that name Python objects, several documents, keys given twice. All of it is refused with its
place. Only the parser's events are used; nothing is ever constructed by PyYAML.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Any

from kt_core.errors import Location
from kt_core.rules import syntax
from kt_core.rules.limits import MAX_BYTES, MAX_DEPTH
from kt_core.rules.nodes import Mapping, Node, Scalar, Sequence
from kt_core.rules.problems import Problems
from kt_core.rules.text import show

# What YAML does not call printable, and line breaks that are none to most editors.
_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|\r(?!\n)"
)
_TAB = re.compile(r"\t")
_BREAK = re.compile(r"\n")
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_COMMENT = re.compile(r"(?<![^\s])#")


def read_tree(data: bytes | str, problems: Problems, *, libyaml: bool | None = None) -> Node | None:
    """Parse a rule file. What is wrong goes to ``problems``; ``None`` means nothing could be read.

    ``libyaml`` forces PyYAML's C parser (``True``) or its Python parser (``False``); by default the
    C parser is used where PyYAML has it.
    """
    text = _decode(data, problems)
    if text is None or not _clean(text, problems):
        return None
    import yaml

    if libyaml is None:
        libyaml = yaml.__with_libyaml__
    loader = yaml.CSafeLoader(text) if libyaml else yaml.SafeLoader(text)
    builder = _Builder(text, problems)
    try:
        while not builder.done:
            builder.feed(loader.get_event())
    except yaml.MarkedYAMLError as error:
        if libyaml and "nesting" in (error.problem or ""):
            # libyaml reads far ahead and gives up at its own limit; the other parser stops at ours.
            return read_tree(text, problems, libyaml=False)
        syntax.report(error, text, problems)
        return None
    except syntax.SyntaxFault as fault:
        fault.report(problems)
        return None
    except yaml.YAMLError as error:
        problems.add("KT105", "this is not valid YAML", Location(problems.path), facts=[str(error)])
        return None
    finally:
        loader.dispose()
    return builder.root


def _decode(data: bytes | str, problems: Problems) -> str | None:
    whole = Location(problems.path)
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problems.add(
            "KT103",
            f"the file is larger than {MAX_BYTES // 1024} KiB, which no rule file is",
            whole,
            facts=[f"size: {size:,} bytes or more"],
            help="name a rule file; weights and other data go elsewhere",
        )
        return None
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    for bom, encoding in ((b"\xff\xfe", "UTF-16 or UTF-32"), (b"\xfe\xff", "UTF-16")):
        if data.startswith(bom):
            problems.add(
                "KT104",
                f"the file is {encoding}, not UTF-8",
                Location(problems.path, 1, 1),
                help="save the file as UTF-8",
            )
            return None
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8").removeprefix("\ufeff")
        problems.add(
            "KT104",
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            _Lines(good, problems).at(len(good)),
            help="save the file as UTF-8",
        )
        return None


def _clean(text: str, problems: Problems) -> bool:
    """Refuse characters and lines on which the two parsers, or two versions of YAML, disagree."""
    lines = _Lines(text, problems)
    if found := _FORBIDDEN.search(text):
        name = "a NUL byte" if found[0] == "\0" else f"the character U+{ord(found[0]):04X}"
        help_ = "remove it"
        if found[0] == "\0":
            help_ = "save the file as UTF-8 text; this looks like UTF-16 or a binary file"
        message = f"{name} does not belong in a rule file"
        problems.add("KT104", message, lines.at(found.start()), help=help_)
        return False
    clean = True
    for found in _TAB.finditer(text):
        if not lines.in_comment(found.start()):
            message = "a tab does not belong in a rule file"
            problems.add("KT106", message, lines.at(found.start()), help="use spaces")
            clean = False
    for found in _DIRECTIVE.finditer(text):
        message = "a rule file has no % directives"
        problems.add("KT110", message, lines.at(found.start()), help="delete this line")
        clean = False
    return clean


class _Lines:
    """Finds the line and column of a position in a text."""

    def __init__(self, text: str, problems: Problems) -> None:
        self.text = text
        self.path = problems.path
        self._starts: list[int] | None = None

    def _line_start(self, position: int) -> tuple[int, int]:
        if self._starts is None:
            self._starts = [0, *(found.end() for found in _BREAK.finditer(self.text))]
        line = bisect_right(self._starts, position)
        return line, self._starts[line - 1]

    def at(self, position: int) -> Location:
        """Return the place of ``position``."""
        line, start = self._line_start(position)
        return Location(self.path, line, position - start + 1)

    def in_comment(self, position: int) -> bool:
        """Whether a ``#`` that begins a comment comes before ``position`` in its line."""
        _, start = self._line_start(position)
        return _COMMENT.search(self.text, start, position) is not None


class _Place:
    __slots__ = ("column", "line")

    def __init__(self, event: Any) -> None:
        self.line: int = event.start_mark.line + 1
        self.column: int = event.start_mark.column + 1


class _Builder:
    """Builds the tree from parser events without recursion."""

    def __init__(self, text: str, problems: Problems) -> None:
        self.text = text
        self.problems = problems
        self.root: Node | None = None
        self.done = False
        self._documents = 0
        self._open: list[Sequence | Mapping] = []
        self._keys: list[Scalar | None] = []
        self._flow = 0
        """How many brackets or braces are open."""
        self._handlers: dict[str, Any] = {
            "ScalarEvent": self._scalar,
            "SequenceStartEvent": self._start,
            "MappingStartEvent": self._start,
            "SequenceEndEvent": self._end,
            "MappingEndEvent": self._end,
            "AliasEvent": self._alias,
            "DocumentStartEvent": self._document,
            "StreamEndEvent": self._stream_end,
        }

    def feed(self, event: object) -> None:
        """Take the next event."""
        handler = self._handlers.get(type(event).__name__)
        if handler is not None:
            handler(event)

    def _stream_end(self, event: Any) -> None:
        self.done = True

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents == 2:
            self.problems.add(
                "KT110",
                "a second document begins here; a rule file holds one",
                _Place(event),
                help="delete the line ---, or move what follows to a file of its own",
            )
            # What follows belongs to no rule file; reading on would only produce noise.
            self.done = True

    def _scalar(self, event: Any) -> None:
        place = _Place(event)
        broken = self._note(event)
        plain = bool(event.implicit[0])
        if plain and self._flow:
            syntax.check_plain_in_flow(self.text, event)
        self._place(Scalar(event.value, plain, place.line, place.column, broken))

    def _start(self, event: Any) -> None:
        broken = self._note(event)
        place = _Place(event)
        if len(self._open) >= MAX_DEPTH:
            self.problems.add(
                "KT111",
                f"lists and mappings are nested more than {MAX_DEPTH} deep",
                place,
                help="a rule needs five levels; check for brackets that are never closed",
            )
            self.done = True
            self.root = None
            return
        sequence = type(event).__name__ == "SequenceStartEvent"
        kind = Sequence if sequence else Mapping
        node = kind(place.line, place.column, broken=broken)
        self._place(node)
        self._open.append(node)
        self._keys.append(None)
        self._flow += self._flow > 0 or bool(event.flow_style)

    def _end(self, event: Any) -> None:
        self._flow -= self._flow > 0
        self._open.pop()
        self._keys.pop()

    def _alias(self, event: Any) -> None:
        self.problems.add(
            "KT107",
            f"*{event.anchor} refers to another place; rule files have no references",
            _Place(event),
            help="write the value out",
        )
        place = _Place(event)
        self._place(Scalar("", False, place.line, place.column, broken=True))

    def _note(self, event: Any) -> bool:
        """Report an anchor or a tag; return whether the node means something else because of it."""
        if event.anchor is not None:
            self.problems.add(
                "KT107",
                f"&{event.anchor} names a value for later use; rule files have no references",
                _Place(event),
                help=f"delete &{event.anchor}",
            )
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.add(
                "KT109",
                f"the tag {show(tag)} is not allowed; values are text, numbers, true and false",
                _Place(event),
                help=f"delete {tag}" if len(tag) < 60 and tag.isprintable() else "delete the tag",
            )
        return event.tag is not None

    def _place(self, node: Node) -> None:
        """Put ``node`` where the parser is: the root, a list item, a key or a key's value."""
        if not self._open:
            if self._documents == 1:
                self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
            return
        key = self._keys[-1]
        if key is None:
            key = self._keys[-1] = self._key(node)
            if key.plain and not key.text:
                key.line, key.column = parent.line, parent.column
            return
        self._keys[-1] = None
        if isinstance(node, Scalar) and node.plain and not node.text:
            # An empty value has no text of its own, and the parsers place it differently.
            node.line, node.column = key.line, key.column
        self._entry(parent, key, node)

    def _key(self, node: Node) -> Scalar:
        if isinstance(node, Scalar):
            return node
        self.problems.add(
            "KT112",
            "a list or mapping cannot be a key",
            node,
            help="keys are plain words such as match, replace and class",
        )
        return Scalar("", False, node.line, node.column, broken=True)

    def _entry(self, parent: Mapping, key: Scalar, value: Node) -> None:
        if key.broken:
            return
        if key.plain and key.text == "<<":
            self.problems.add(
                "KT108",
                "<< merges another mapping; rule files have no merge keys",
                key,
                help="write the keys out",
            )
            return
        first = parent.entries.get(key.text)
        if first is not None:
            self.problems.add(
                "KT113",
                f"the key {show(key.text)} is given twice",
                key,
                facts=[f"first given at {self.problems.at(first[0])}"],
                help="keep one of the two",
            )
            return
        parent.entries[key.text] = (key, value)
