"""JSON as a file format: UTF-8, no duplicate keys, no NaN, and no input that breaks the reader."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from kt_core.weights.text import printable


class JsonError(ValueError):
    """The text is not acceptable JSON. ``offset`` counts bytes from its start, where known."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


def parse(raw: bytes) -> Any:
    """Parse ``raw``; raise :class:`JsonError` for everything that is wrong with it."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as cause:
        raise JsonError("is not UTF-8", cause.start) from cause
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except JsonError:
        raise
    except json.JSONDecodeError as cause:
        offset = len(text[: cause.pos].encode())
        raise JsonError(f"is not JSON: {cause.msg}", offset) from cause
    except ValueError as cause:  # an integer of thousands of digits
        raise JsonError(f"holds a number that cannot be read: {cause}") from cause
    except RecursionError as cause:
        raise JsonError("is nested too deeply") from cause


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonError(f'has the key "{printable(key)}" twice in one object')
            seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    raise JsonError(f"holds {name}, which is not JSON")
