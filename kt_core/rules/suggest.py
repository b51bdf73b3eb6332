"""Did you mean: the candidate nearest to a misspelt word."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 120


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate a user most likely meant by ``word``, or ``None`` if none is near.

    Case is ignored. Dotted names are also compared by their last part, so that a wrong module path
    still finds the right class. Words longer than 120 characters have no suggestion.
    """
    if not word or len(word) > _LONGEST:
        return None
    best: tuple[float, str] | None = None
    for candidate in candidates:
        score = _score(word, candidate)
        if score is not None and (best is None or score < best[0]):
            best = (score, candidate)
    return best[1] if best else None


def _score(word: str, candidate: str) -> float | None:
    folded, other = word.casefold(), candidate.casefold()
    whole = _within(folded, other)
    tail, other_tail = folded.rpartition(".")[2], other.rpartition(".")[2]
    if (tail, other_tail) == (folded, other):
        return whole
    last = _within(tail, other_tail)
    if last is not None:
        # A hit on the last part alone ranks behind an equally good hit on the whole name.
        last += 0.5
    scores = [score for score in (whole, last) if score is not None]
    return min(scores, default=None)


def _within(word: str, other: str) -> float | None:
    """Return the edit distance if it is small for words of this length."""
    limit = max(1, min(len(word), len(other)) // 3)
    if abs(len(word) - len(other)) > limit:
        return None
    found = distance(word, other, limit)
    return None if found > limit or found >= max(len(word), len(other)) else float(found)


def distance(a: str, b: str, limit: int) -> int:
    """Return the edits (insert, delete, replace, swap neighbours) from ``a`` to ``b``.

    Gives up with ``limit + 1`` as soon as more than ``limit`` edits are certain.
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        current = [i]
        for j, right in enumerate(b, 1):
            cost = min(row[j] + 1, current[j - 1] + 1, row[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        if min(current) > limit and (not row or min(row) > limit):
            return limit + 1
        before, row = row, current
    return row[-1]


def nearest(word: str, candidates: Iterable[str], most: int) -> list[str]:
    """Return up to ``most`` candidates near ``word``, the nearest first."""
    if not word or len(word) > _LONGEST:
        return []
    scored = [
        (score, number, candidate)
        for number, candidate in enumerate(candidates)
        if (score := _score(word, candidate)) is not None
    ]
    return [candidate for _, _, candidate in sorted(scored)[:most]]
