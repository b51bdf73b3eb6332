"""Markdown for a terminal: wrapped text, aligned tables, code as it is. No markup is left to read around.

It knows what the pages use: headings, paragraphs, lists, tables, fenced code, quotes and comments.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Sequence

_ITEM = re.compile(r"^(\s*)([-*]|\d+\.) +(.*)$")
_LINK = re.compile(r"!?(?<!\\)\[([^\]]*)\]\(([^)\s]+)[^)]*\)")
_BOLD = "\x1b[1m"
_PLAIN = "\x1b[0m"


def to_terminal(text: str, width: int = 88, *, styled: bool = False) -> str:
    """Return ``text`` (Markdown) as plain lines of at most ``width``; ``styled``: bold headings.

    Code is never wrapped, and neither are tables whose columns do not fit.
    """
    writer = _Writer(max(width, 40), styled=styled)
    return "\n".join(writer.write(text.splitlines())).strip("\n") + "\n"


class _Writer:
    def __init__(self, width: int, *, styled: bool) -> None:
        self.width = width
        self.styled = styled

    def write(self, lines: Sequence[str]) -> Iterator[str]:
        """Yield the lines to show; blocks keep one empty line between them."""
        at = 0
        while at < len(lines):
            line = lines[at]
            fence = re.match(r"^( *)(```+|~~~+)", line)
            if fence is not None:
                end = _closing(lines, at, fence[2])
                indent = len(fence[1])
                yield from (f"    {code[indent:]}".rstrip() for code in lines[at + 1 : end])
                at = end + 1
            elif line.startswith("<!--"):
                while at < len(lines) and "-->" not in lines[at]:
                    at += 1
                at += 1
            elif re.fullmatch(r"\([\w-]+\)=", line):
                at += 1  # the name of what follows, for links
            elif re.match(r"#{1,6} ", line):
                yield from self._heading(line)
                at += 1
            elif line.startswith("|"):
                end = _while(lines, at, lambda other: other.startswith("|"))
                yield from self._table(lines[at:end])
                at = end
            elif not line.strip():
                yield ""
                at += 1
            else:
                end = at + 1 + _continued(lines[at + 1 :])
                yield from self._paragraph(lines[at:end])
                at = end

    def _heading(self, line: str) -> Iterator[str]:
        level = len(line) - len(line.lstrip("#"))
        title = inline(line[level:].strip())
        yield f"{_BOLD}{title}{_PLAIN}" if self.styled else title
        if level < 3 and not self.styled:
            yield ("=" if level == 1 else "-") * len(title)

    def _paragraph(self, lines: Sequence[str]) -> Iterator[str]:
        item = _ITEM.match(lines[0])
        begin = lines[0]
        first = later = ""
        if item is not None:
            first = f"{item[1]}{item[2]} "
            later, begin = " " * len(first), item[3]
        text = inline(" ".join([begin, *(line.strip() for line in lines[1:])]))
        yield from textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=later,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _table(self, lines: Sequence[str]) -> Iterator[str]:
        rows = [[inline(cell) for cell in _cells(line)] for line in lines]
        rows = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
        count = max(map(len, rows))
        rows = [row + [""] * (count - len(row)) for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(count)]
        left = sum(widths[:-1]) + 2 * (count - 1)
        last = max(self.width - left, 24)
        for number, row in enumerate(rows):
            *cells, text = row
            head = "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=False))
            begin = f"{head}  " if cells else ""
            pieces = textwrap.wrap(text, last, break_long_words=False) or [""]
            yield f"{begin}{pieces[0]}".rstrip()
            yield from (f"{' ' * left}{piece}" for piece in pieces[1:])
            if number == 0 and len(rows) > 1:
                yield "-" * min(self.width, left + min(last, widths[-1]))


def inline(text: str) -> str:
    """Text without the marks for emphasis, code and links; a link to elsewhere keeps its address."""
    parts = re.split(r"(`+)(.+?)\1", text)
    shown = []
    for index in range(0, len(parts), 3):
        shown.append(_prose(parts[index]))
        shown.extend(parts[index + 2 : index + 3])
    return "".join(shown)


def _prose(text: str) -> str:
    text = _LINK.sub(lambda m: m[1] if ":" not in m[2] else f"{m[1]} <{m[2]}>", text)
    text = re.sub(r"(?<![\\\w])(\*\*|__)(\S.*?)(?<!\\)\1", r"\2", text)
    text = re.sub(r"(?<![\\\w*])\*([^\s*][^*]*)(?<!\\)\*(?!\w)", r"\1", text)
    return html.unescape(re.sub(r"\\([\\`*_{}\[\]()#+.!|<>-])", r"\1", text))


def _cells(line: str) -> list[str]:
    body = re.sub(r"^\||(?<!\\)\|\s*$", "", line.strip())
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", body)]


def _closing(lines: Sequence[str], at: int, fence: str) -> int:
    for number in range(at + 1, len(lines)):
        if lines[number].strip().startswith(fence) and not lines[number].strip().strip(fence[0]):
            return number
    return len(lines)


def _while(lines: Sequence[str], at: int, holds: object) -> int:
    while at < len(lines) and holds(lines[at]):  # type: ignore[operator]
        at += 1
    return at


def _continued(lines: Sequence[str]) -> int:
    """How many of ``lines`` still belong to the paragraph that began before them."""
    count = 0
    for line in lines:
        if not line.strip() or _ITEM.match(line) or re.match(r"#{1,6} |\||```|~~~|<!--", line):
            break
        count += 1
    return count
