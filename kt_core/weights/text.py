"""Text from a weight file, made safe to print, and names that look like a wanted one."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable

from kt_core.errors import Location, Problem, Severity, WeightsError

_NEAREST_POOL = 64


def printable(text: str, limit: int = 160) -> str:
    """Return ``text``, cut to ``limit``, with all that could steer a terminal escaped."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def raw_name(raw: bytes, limit: int = 80) -> str:
    """Return the bytes of a name from a file for a message, whether or not they are UTF-8."""
    return printable(raw[: 4 * limit].decode("utf-8", "backslashreplace"), limit)


def problem(
    code: str,
    path: str,
    message: str,
    *,
    field: str | None = None,
    offset: int | None = None,
    facts: Iterable[str] = (),
    help: str | None = None,
    severity: Severity = Severity.ERROR,
) -> Problem:
    """Build a problem of a weight file: ``field`` and byte ``offset`` become its first facts."""
    where = []
    if field is not None:
        where.append(f"field: {field}")
    if offset is not None:
        where.append(f"byte offset: {offset}")
    return Problem(
        code, message, Location(printable(path, 4096)), (*where, *facts), help, severity=severity
    )


def error(
    code: str,
    path: str,
    message: str,
    *,
    field: str | None = None,
    offset: int | None = None,
    facts: Iterable[str] = (),
    help: str | None = None,
) -> WeightsError:
    """Build the exception for :func:`problem`."""
    return WeightsError(
        problem(code, path, message, field=field, offset=offset, facts=facts, help=help)
    )


def nearest(wanted: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the ``count`` names most like ``wanted``, best first.

    A file may hold 50,000 names, so a cheap score (shared start and end) picks the pool that the
    careful comparison then ranks.
    """
    backwards = wanted[::-1]

    def cheap(name: str) -> int:
        shared = _shared_start(wanted, name) + _shared_start(backwards, name[::-1])
        return shared - abs(len(name) - len(wanted))

    pool = heapq.nlargest(_NEAREST_POOL, names, key=cheap)
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)

    def careful(name: str) -> float:
        matcher.set_seq1(name)
        return matcher.ratio()

    return heapq.nlargest(count, pool, key=careful)


def _shared_start(one: str, other: str) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
