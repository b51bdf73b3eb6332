"""Collects the problems of one file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kt_core.errors import Location, Problem, Severity
from kt_core.rules.limits import MAX_PROBLEMS


class Placed(Protocol):
    """Anything with a place in the text."""

    @property
    def line(self) -> int:
        """Line, from 1."""

    @property
    def column(self) -> int:
        """Column, from 1."""


class Problems:
    """The findings of one file, at most ``MAX_PROBLEMS`` of them in full."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._found: list[Problem] = []
        self._seen: set[Problem] = set()
        self._beyond = 0
        self.failed = False

    @property
    def full(self) -> bool:
        """Whether further findings are only counted, so that words about them are wasted."""
        return len(self._found) >= MAX_PROBLEMS

    def at(self, node: Placed) -> Location:
        """Return the place of ``node`` in this file."""
        return Location(self.path, node.line, node.column)

    def add(
        self,
        code: str,
        message: str,
        place: Placed | Location | None,
        *,
        facts: Iterable[str] = (),
        help: str | None = None,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Record one finding."""
        where = place if place is None or isinstance(place, Location) else self.at(place)
        self.take(Problem(code, message, where, tuple(facts), help, severity))

    def take(self, problem: Problem) -> None:
        """Record a finding made elsewhere. The same finding at the same place is kept once."""
        if problem.severity is Severity.ERROR:
            self.failed = True
        if problem in self._seen:
            return
        if len(self._found) >= MAX_PROBLEMS:
            self._beyond += 1
            return
        self._seen.add(problem)
        self._found.append(problem)

    def drop_from(self, line: int) -> None:
        """Forget what was found at ``line`` or below, where something else went wrong.

        The two YAML parsers read ahead by different amounts, so only what lies above is certain.
        """
        kept = [p for p in self._found if p.location is not None and p.location.line < line]
        self._found, self._seen = kept, set(kept)
        self.failed = any(p.severity is Severity.ERROR for p in kept)

    def all(self) -> tuple[Problem, ...]:
        """Return the findings in the order of the file."""
        found = sorted(self._found, key=_order)
        if self._beyond:
            severity = Severity.ERROR if self.failed else Severity.WARNING
            text = f"{self._beyond} more findings in this file are not shown"
            found.append(Problem("KT100", text, Location(self.path), severity=severity))
        return tuple(found)


def _order(problem: Problem) -> tuple[int, int, str]:
    where = problem.location
    return (where.line, where.column, problem.code) if where else (0, 0, problem.code)
