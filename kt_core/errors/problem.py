"""The one shape of everything that can be wrong: a coded problem with a place, facts and a way out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Severity(enum.StrEnum):
    """How bad a problem is. Warnings become errors under ``--strict``; notes never do."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Location:
    """A place in a text file. ``line`` and ``column`` count from 1; 0 means the file as a whole."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if self.line == 0:
            return self.path
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One finding, as it is printed, serialised and raised.

    ``code`` is a stable ``KTnnn`` (see :mod:`kt_core.errors.codes`), ``message`` one sentence in the
    user's own words, ``facts`` are lines shown indented below it and ``help`` is one line that can be
    pasted or followed. ``location`` is ``None`` where no text file is at fault.
    """

    code: str
    message: str
    location: Location | None = None
    facts: tuple[str, ...] = ()
    help: str | None = None
    severity: Severity = Severity.ERROR

    def render(self) -> str:
        """Return the text form: ``path:line:col: KTnnn message``, facts and help indented below."""
        head = f"{self.code} {self.message}"
        if self.severity is not Severity.ERROR:
            head = f"{self.code} {self.severity.value}: {self.message}"
        if self.location is not None:
            head = f"{self.location}: {head}"
        lines = [head, *(f"  {fact}" for fact in self.facts)]
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)

    def to_json(self) -> Mapping[str, Any]:
        """Return plain data for ``--format json``."""
        where = self.location
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "path": where.path if where else None,
            "line": where.line if where else None,
            "column": where.column if where else None,
            "facts": list(self.facts),
            "help": self.help,
        }
