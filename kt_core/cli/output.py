"""How commands write: problems, tables, JSON, and nothing that could steer a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from kt_core.errors import Problem

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped; tabs and line ends stay.

    File names, metadata and plugins' messages come from outside, and a terminal obeys what is
    written to it.
    """
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def write(text: str, stream: TextIO | None = None) -> None:
    """Write ``text`` and a line end to ``stream`` (standard output).

    Whatever came before it on standard output is there first, also where both streams go to one file.
    """
    if stream is sys.stderr:
        sys.stdout.flush()
    print(printable(text), file=stream or sys.stdout)


def write_problems(problems: Iterable[Problem], stream: TextIO | None = None) -> None:
    """Write each problem in its text form, to standard error unless told otherwise."""
    for problem in problems:
        write(problem.render(), stream or sys.stderr)


def write_json(data: Any, stream: TextIO | None = None) -> None:
    """Write ``data`` as indented JSON; what could steer a terminal is escaped in JSON's own way."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    text = _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    print(text, file=stream or sys.stdout)


def table(rows: Sequence[Sequence[str]], *, indent: int = 0, gap: int = 2) -> str:
    """Return ``rows`` as left-aligned columns; the last column is not padded."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((" " * indent + (" " * gap).join(padded)).rstrip())
    return "\n".join(lines)
