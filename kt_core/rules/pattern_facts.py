"""What can be said about a pattern without running it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kt_core.rules.pattern_tree import (
    DIGITS,
    INFINITE,
    Branch,
    Chars,
    Edge,
    Group,
    Item,
    Literal,
    Look,
    Repeat,
    parse,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """About one pattern.

    ``numbers``: which whole numbers of a module path can change whether the pattern matches it, as
    positions among its numbers (0 is the layer), or ``None``: any may. Paths differ mostly in layer
    and expert numbers, and most patterns do not tell these apart. ``pieces``: text without digits
    that every matching path contains. ``cheap``: matching cannot take long, so that no time limit
    is needed. ``whole``: the one path a fully literal pattern matches. ``opaque``: the pattern uses
    what ``pattern_tree`` cannot read.
    """

    numbers: frozenset[int] | None
    pieces: tuple[str, ...]
    cheap: bool
    whole: str | None
    opaque: bool


@lru_cache(maxsize=4096)
def facts(pattern: str) -> Facts:
    """Return what is known about a valid ``pattern``."""
    branches = parse(pattern)
    if branches is None:
        return Facts(None, (), cheap=False, whole=None, opaque=True)
    return Facts(
        _numbers(branches),
        _pieces(branches[0]) if len(branches) == 1 else (),
        _cheap(branches),
        _whole(branches),
        opaque=False,
    )


# --- which numbers matter -------------------------------------------------------------------------


def _numbers(branches: tuple[Branch, ...]) -> frozenset[int] | None:
    found: frozenset[int] = frozenset()
    for branch in branches:
        matter = _numbers_of(branch)
        if matter is None:
            return None
        found |= matter
    return found


def _numbers_of(branch: Branch) -> frozenset[int] | None:
    """Read ``^``, literal text and numbers from the left; what follows must ignore all numbers.

    A number here is any expression over digits that takes up a whole path segment. As long as only
    literal text and numbers come before it, its position among the numbers of a path is known.
    """
    if blind(branch, top=True):
        return frozenset()
    if branch[:1] != (Edge("^"),):
        return None
    matter: set[int] = set()
    count = 0
    i = 1
    begins = True
    """Whether a path segment begins at ``i``."""
    while i < len(branch):
        item = branch[i]
        if begins and only_digits(item):
            end = i + 1
            while end < len(branch) and only_digits(branch[end]):
                end += 1
            if end < len(branch) and branch[end] not in (Literal("."), Edge("$")):
                break
            if end > i + 1 or not _any_number(item):
                matter.add(count)
            count += 1
            begins = False
            i = end
        elif isinstance(item, Literal) and item.char not in DIGITS:
            begins = item.char == "."
            i += 1
        else:
            break
    return frozenset(matter) if blind(branch[i:], top=True) else None


def _any_number(item: Item) -> bool:
    """Whether ``item`` is ``[0-9]+`` or the like."""
    match item:
        case Repeat(Chars(ascii=chars), least, most):
            return chars == DIGITS and least <= 1 and most >= INFINITE
    return False


def only_digits(item: Item) -> bool:
    """Whether ``item`` matches nothing but digits (at least one character of them, or none)."""
    match item:
        case Literal(char):
            return char in DIGITS
        case Chars(ascii=chars, any=any_):
            return not any_ and chars <= DIGITS and bool(chars)
        case Group(branches):
            return all(branch and all(map(only_digits, branch)) for branch in branches)
        case Repeat(inner, _, _):
            return only_digits(inner)
    return False


def blind(branch: Branch, *, top: bool) -> bool:
    r"""Whether one number in a path can be exchanged for another without changing the outcome.

    A *number* is a path segment of digits only, so its neighbours are dots or the ends of the path.
    Digits of a number may only be consumed by items that take any run of them: ``.*``, ``[^.]*``
    and so on, or ``\d+`` and ``.+`` where nothing else can share the run. A digit behind a letter,
    as in ``w1``, is never part of a number. ``top``: the branch is not inside a group.
    """
    outside = False
    """Whether the item before certainly took a character that no number follows: neither dot nor
    digit."""
    for i, item in enumerate(branch):
        was_outside, outside = outside, False
        match item:
            case Literal(char):
                if char in DIGITS and not was_outside:
                    return False
                outside = char != "." and (char not in DIGITS or was_outside)
            case Chars(ascii=chars):
                if chars & DIGITS and not was_outside:
                    return False
                # Such a character is part of no number, but it may be a dot.
                outside = "." not in chars
            case Edge(_):
                pass
            case Repeat(inner, least, most):
                if not _blind_repeat(branch, i, inner, least, most, top):
                    return False
            case Group(branches):
                if not all(blind(inner, top=False) for inner in branches):
                    return False
            case Look(branches, _):
                if not all(blind(inner, top=False) for inner in branches):
                    return False
    return True


def _blind_repeat(branch: Branch, i: int, inner: Item, least: int, most: int, top: bool) -> bool:
    if isinstance(inner, Literal):
        return inner.char not in DIGITS
    if not isinstance(inner, Chars):
        return isinstance(inner, Group) and all(blind(b, top=False) for b in inner.branches)
    digits = inner.ascii & DIGITS
    if not digits:
        return True
    if digits != DIGITS or most < INFINITE or least > 1:
        return False
    return least == 0 or (_parted(branch, i - 1, top) and _parted(branch, i + 1, top))


def _parted(branch: Branch, i: int, top: bool) -> bool:
    """Whether item ``i`` cannot take a digit: an edge, the end, a character that is none."""
    if not 0 <= i < len(branch):
        return top
    match branch[i]:
        case Literal(char):
            return char not in DIGITS
        case Chars(ascii=chars):
            return not chars & DIGITS
        case Edge(_):
            return True
    return False


# --- other facts ----------------------------------------------------------------------------------


def _pieces(branch: Branch) -> tuple[str, ...]:
    found: list[str] = []
    run = ""
    for item in (*branch, Edge("$")):
        if isinstance(item, Literal) and item.char not in DIGITS:
            run += item.char
            continue
        if len(run) > 1:
            found.append(run)
        run = ""
    # The longest piece decides most often.
    return tuple(sorted(set(found), key=len, reverse=True))


def _whole(branches: tuple[Branch, ...]) -> str | None:
    if len(branches) != 1:
        return None
    match branches[0]:
        case [Edge("^"), *middle, Edge("$")] if all(isinstance(i, Literal) for i in middle):
            return "".join(i.char for i in middle if isinstance(i, Literal))
    return None


_MAX_POWER = 3
_MAX_WAYS = 64


def _cheap(branches: tuple[Branch, ...]) -> bool:
    """Whether matching a path of ``n`` characters surely takes at most some ``64 * n**3`` steps.

    Each unbounded repeat may be tried at ``n`` lengths, and so may the start of a pattern without
    ``^``. Alternatives and bounded repeats multiply the ways to go. A lookahead is decided once
    where it stands, so the worst one counts. Repeats inside repeats are never cheap.
    """
    ways = 0
    for branch in branches:
        power, factor = _cost(branch)
        if branch[:1] != (Edge("^"),):
            power += 1
        if power > _MAX_POWER:
            return False
        ways += factor
    return ways <= _MAX_WAYS


def _cost(branch: Branch) -> tuple[int, int]:
    power = 0
    looking = 0
    ways = 1
    for item in branch:
        match item:
            case Repeat(Group(branches), _, most):
                inner = [_cost(b) for b in branches]
                if most > 1 or any(p for p, _ in inner):
                    return _MAX_POWER + 1, 1
                ways *= 1 + sum(w for _, w in inner)
            case Repeat(_, least, most):
                if most >= INFINITE:
                    power += 1
                else:
                    ways *= most - least + 1
            case Group(branches):
                inner = [_cost(b) for b in branches]
                power += max(p for p, _ in inner)
                ways *= sum(w for _, w in inner)
            case Look(branches, _):
                inner = [_cost(b) for b in branches]
                looking = max(looking, *(p for p, _ in inner))
                ways *= sum(w for _, w in inner)
    return power + looking, ways
