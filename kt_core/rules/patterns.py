"""Regular expressions of ``match.name``: are they valid, and running them without risk.

Patterns are Python's. What only the ``regex`` module knows is accepted too, but ``regex`` is
imported only where it is needed: for such patterns, and to put a time limit on those that could
take long.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kt_core.rules.limits import MATCH_SECONDS
from kt_core.rules.pattern_facts import facts

_LONG_PATH = 256
"""Characters beyond which even a cheap pattern is run under a time limit."""

_MAX_GROUPS = 100
# The regex module reads {e<=1} as "with at most one error"; re reads it as text. Neither is meant.
_FUZZY = re.compile(r"(?<!\\[pPN])\{[^{}0-9,][^{}]*\}")


@dataclass(frozen=True)
class BadPattern:
    """Why a pattern is not valid, and at which character of it (from 0), where that is known."""

    reason: str
    position: int | None


class PatternTimeoutError(Exception):
    """A search took longer than allowed."""


@lru_cache(maxsize=4096)
def check(pattern: str) -> BadPattern | None:
    """Return what is wrong with ``pattern``, or ``None``."""
    if pattern.count("(") > _MAX_GROUPS:
        return BadPattern(f"more than {_MAX_GROUPS} groups", None)
    fuzzy = _FUZZY.search(pattern)
    if fuzzy is not None and not _escaped(pattern, fuzzy.start()):
        return BadPattern(
            "braces hold a repeat count such as {2} or {1,3}; module paths contain none",
            fuzzy.start(),
        )
    try:
        _compile(pattern)
    except re.error as error:
        if _regex_accepts(pattern):
            return None
        return BadPattern(str(error.msg), error.pos)
    except (OverflowError, RecursionError, MemoryError) as error:
        return BadPattern(str(error) or "too complex", None)
    return None


def _escaped(pattern: str, position: int) -> bool:
    before = pattern[:position]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _compile(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(pattern)


def _regex_accepts(pattern: str) -> bool:
    import regex

    try:
        regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, MemoryError):
        return False
    return True


@lru_cache(maxsize=4096)
def searcher(pattern: str, *, seconds: float = MATCH_SECONDS) -> Callable[[str], bool]:
    """Return a function that says whether the valid ``pattern`` is found in a module path.

    The function raises :class:`PatternTimeoutError` when one search takes more than ``seconds`` of
    processor time; patterns that cannot are run by ``re``, which is three times as fast.
    """
    timed = _timed(pattern, seconds)
    if not facts(pattern).cheap:
        return timed
    find = _compile(pattern).search

    def search(path: str) -> bool:
        if len(path) > _LONG_PATH:
            return timed(path)
        return find(path) is not None

    return search


def _timed(pattern: str, seconds: float) -> Callable[[str], bool]:
    find: Callable[..., object] | None = None

    def search(path: str) -> bool:
        nonlocal find
        if find is None:
            import regex

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                find = regex.compile(pattern).search
        try:
            return find(path, timeout=seconds) is not None
        except TimeoutError:
            raise PatternTimeoutError(pattern) from None

    return search
