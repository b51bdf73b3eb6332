"""Rules that can never apply because of the rules above them.

Only what is certain for every model is reported: the same match again, a match that an earlier rule
without ``name`` or ``class`` includes, a longer pattern behind its own beginning. What depends on
the model, the plan tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from kt_core.errors import Severity
from kt_core.rules.classes import meant_by
from kt_core.rules.draft import Draft
from kt_core.rules.model import DEFAULT
from kt_core.rules.pattern_facts import facts
from kt_core.rules.pattern_tree import INFINITE, Branch, Chars, Edge, Literal, Repeat, parse
from kt_core.rules.problems import Problems

_EVERYTHING = frozenset(
    (
        "",
        "^",
        "$",
        ".*",
        "^.*",
        ".*$",
        "^.*$",
        ".*?",
        "^.*?$",
        "(.*)",
        "^(.*)$",
        "(?:.*)",
        "()",
        "|",
    )
)
_EVERYTHING_BUT_ROOT = frozenset(
    (".", "^.", ".+", "^.+", ".+$", "^.+$", "(.+)", "^(.+)$", r"\w", r"\w+")
)


def lint_order(drafts: Sequence[Draft], problems: Problems) -> None:
    """Check the rules of a file against each other."""
    sound = [draft for draft in drafts if draft.sound]
    index = _Index()
    closed = False
    for draft in sound:
        earlier = index.includes(draft)
        if earlier is not None and not (closed and _catches_all(earlier)):
            _report(draft, earlier, problems)
            closed = closed or (_catches_all(earlier) and not earlier.continue_)
        index.add(draft)
    last = drafts[-1] if drafts else None
    if last is not None and last.continue_:
        problems.add(
            "KT130",
            "continue: true has no effect: no rule follows",
            last.places["continue"],
            help="delete continue: true",
            severity=Severity.WARNING,
        )


def _report(draft: Draft, earlier: Draft, problems: Problems) -> None:
    if earlier.continue_:
        if draft.replace_class in (None, DEFAULT, earlier.replace_class):
            return
        problems.add(
            "KT130",
            f"the class of rule {draft.index + 1} is never used: that of {earlier} stays",
            draft.places.get("replace.class", draft.place),
            help="leave out class: here, or continue: there",
            severity=Severity.WARNING,
        )
        return
    if _catches_all(earlier):
        problems.add(
            "KT127",
            f"rule {earlier.index + 1} matches every module, so no rule below it applies",
            earlier.places.get("match.name", earlier.place),
            facts=[f"the first one below it: {draft}"],
            help="move it to the end of the file",
            severity=Severity.WARNING,
        )
        return
    same = _key(earlier) == _key(draft)
    problems.add(
        "KT126",
        f"rule {draft.index + 1} never applies: {earlier} "
        + ("has the same match" if same else "matches all that it matches"),
        draft.places.get("match", draft.place),
        help="delete it, or move it up",
        severity=Severity.WARNING,
    )


def _key(draft: Draft) -> tuple[str | None, tuple[str, ...] | None]:
    return draft.name, meant_by(draft.match_class) if draft.match_class is not None else None


def _catches_all(draft: Draft) -> bool:
    if draft.match_class is not None:
        return False
    return draft.name in _EVERYTHING or draft.name in _EVERYTHING_BUT_ROOT


class _Index:
    """The rules seen so far, by what they match. Rules that continue come second."""

    def __init__(self) -> None:
        self._exact: dict[object, list[Draft]] = {}
        self._prefixes: dict[tuple[str, object], Draft] = {}
        self._catch_all: Draft | None = None

    def add(self, draft: Draft) -> None:
        self._exact.setdefault(_key(draft), []).append(draft)
        if _catches_all(draft) and (self._catch_all is None or self._catch_all.continue_):
            self._catch_all = draft
        prefix = _literal_prefix(draft.name) if draft.name is not None else None
        if prefix:
            self._prefixes.setdefault((prefix, _key(draft)[1]), draft)

    def includes(self, draft: Draft) -> Draft | None:
        """Return an earlier rule that is certain to match all that ``draft`` matches."""
        name, cls = _key(draft)
        found = list(self._exact.get((name, cls), ()))
        if cls is not None and name is not None:
            found += self._exact.get((name, None), ())
            found += self._exact.get((None, cls), ())
        if self._catch_all is not None:
            found.append(self._catch_all)
        if name is not None:
            found += self._by_prefix(name, cls)
        found.sort(key=lambda other: (other.continue_, other.index))
        return found[0] if found else None

    def _by_prefix(self, name: str, cls: object) -> list[Draft]:
        beginning = _beginning(name)
        if not beginning:
            return []
        return [
            self._prefixes[key]
            for length in range(1, len(beginning) + 1)
            for key in ((beginning[:length], cls), (beginning[:length], None))
            if key in self._prefixes
        ]


def _literal_prefix(pattern: str) -> str | None:
    """Return ``text`` if the pattern is ``^text``, which matches all paths that begin so."""
    branches = None if facts(pattern).opaque else parse(pattern)
    if branches is None or len(branches) != 1:
        return None
    branch = branches[0]
    if len(branch) > 1 and branch[-1] == Edge("$") and _is_rest(branch[:-1]):
        branch = branch[:-1]
    while branch and _is_rest(branch):
        branch = branch[:-1]
    text = _beginning_of(branch)
    return text if text and len(branch) == len(text) + 1 else None


def _is_rest(branch: Branch) -> bool:
    """Whether the branch ends in ``.*``, which changes nothing."""
    match branch[-1]:
        case Repeat(Chars(any=True), 0, most) if most >= INFINITE:
            return True
    return False


def _beginning(pattern: str) -> str:
    """Return the literal text that every matching path begins with, as far as it is evident."""
    branches = None if facts(pattern).opaque else parse(pattern)
    return _beginning_of(branches[0]) if branches is not None and len(branches) == 1 else ""


def _beginning_of(branch: Branch) -> str:
    if branch[:1] != (Edge("^"),):
        return ""
    text = ""
    for item in branch[1:]:
        if not isinstance(item, Literal):
            break
        text += item.char
    return text
