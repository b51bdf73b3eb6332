"""The nearest of the words that would have been right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate most like ``word``, or ``None`` when none is near."""
    near = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.7)
    return near[0] if near else None
