"""Which rule applies to which module: text against text, nothing is imported or changed.

For every module the rules are tried from top to bottom and the first that matches wins. If it says
``continue: true``, later matching rules add their kwargs, up to and including the first that does
not say so; the class stays that of the first. A module whose rule says ``recursive: false`` keeps
all rules away from the modules inside it. The model itself (path ``""``) can be matched, but is
never replaced.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kt_core.errors import Problem, RuleError, Severity
from kt_core.rules import classes
from kt_core.rules.limits import MATCH_SECONDS, TOTAL_SECONDS
from kt_core.rules.match_index import MatchIndex
from kt_core.rules.model import DEFAULT, Rule, RuleSet
from kt_core.rules.text import show, show_pattern

Module = tuple[str, Sequence[str]]
"""A module's dotted path, and the qualified names of its class and of that class's bases."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModuleMatch:
    """What the rules say about one module. Rules are given by their index in the rule set.

    ``rule`` won (``None``: no rule applies), ``added`` are later rules that added to ``kwargs``,
    and ``losers`` match as well but came too late. ``kept_by`` is the rule of an enclosing module
    whose ``recursive: false`` keeps all rules away; ``losers`` are then those that would have
    matched.
    """

    path: str
    rule: int | None
    kwargs: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    added: tuple[int, ...] = ()
    losers: tuple[int, ...] = ()
    kept_by: int | None = None


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """How one rule fared over all modules.

    ``matched`` modules fit it (those it was kept away from not counted), ``won`` got its class,
    ``added`` got its kwargs through an earlier ``continue``. ``lost_to`` maps the index of the rule
    that took a module first to the number of modules, ``kept_away`` the index of a rule with
    ``recursive: false`` to the number of modules inside the ones it took.
    """

    matched: int
    won: int
    added: int
    lost_to: Mapping[int, int]
    kept_away: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Matches:
    """The outcome for a whole model: one entry per module and per rule, in their order."""

    modules: tuple[ModuleMatch, ...]
    rules: tuple[RuleMatch, ...]
    problems: tuple[Problem, ...] = ()


def class_matches(match_class: str, class_names: Iterable[str]) -> bool:
    """Whether ``match_class`` names one of ``class_names``; public re-exports count."""
    return classes.matches(match_class, class_names)


def match_modules(rules: RuleSet, modules: Sequence[Module]) -> Matches:
    """Match every module, given in the order parents before children, each subtree together.

    Raises:
        RuleError: KT121 for a pattern that is not valid, KT170 for one that takes too long, KT171
            when everything together does.
    """
    return Matcher(rules).run(modules)


def explain_module(rules: RuleSet, path: str, modules: Sequence[Module]) -> list[str]:
    """Return one line per rule: how it stands to the module ``path``, in order."""
    return Matcher(rules).explain(path, modules)


@dataclass(slots=True)
class _Decision:
    rule: int | None
    kwargs: Mapping[str, Any]
    added: tuple[int, ...]
    losers: tuple[int, ...]
    stopped_by: int | None
    recursive: bool


class Matcher:
    """Matches modules against one rule set. Limits are in seconds, ``per_match`` of CPU time."""

    def __init__(
        self,
        rules: RuleSet,
        *,
        per_match: float = MATCH_SECONDS,
        total: float = TOTAL_SECONDS,
    ) -> None:
        self.rules = rules.rules
        self._total = total
        self._index = MatchIndex(self.rules, per_match)
        self._decisions: dict[tuple[int, ...], _Decision] = {}

    def first(self, path: str, class_names: Sequence[str]) -> ModuleMatch:
        """Match a single module, as if no rule kept it from being matched."""
        decision = self._decide(self._index.matching(path, tuple(class_names)))
        return ModuleMatch(path, decision.rule, decision.kwargs, decision.added, decision.losers)

    def run(self, modules: Sequence[Module]) -> Matches:
        """See :func:`match_modules`."""
        found: list[ModuleMatch] = []
        tally = _Tally(len(self.rules))
        deadline = time.perf_counter() + self._total
        barrier: str | None = None
        keeper = 0
        for number, (path, class_names) in enumerate(modules):
            if number % 64 == 0 and time.perf_counter() > deadline:
                raise self._too_long(len(modules), number)
            matching = self._index.matching(path, tuple(class_names))
            if barrier is not None and path.startswith(barrier):
                tally.keep_away(matching, keeper)
                found.append(ModuleMatch(path, None, losers=matching, kept_by=keeper))
                continue
            barrier = None
            decision = self._decide(matching)
            tally.count(matching, decision)
            found.append(
                ModuleMatch(path, decision.rule, decision.kwargs, decision.added, decision.losers)
            )
            if not decision.recursive:
                barrier = f"{path}." if path else ""
                keeper = _keeper(self.rules, decision)
        return Matches(tuple(found), tally.result(), tuple(self._root_problems(found)))

    def explain(self, path: str, modules: Sequence[Module]) -> list[str]:
        """See :func:`explain_module`."""
        matches = self.run(modules)
        number = next((i for i, module in enumerate(modules) if module[0] == path), None)
        if number is None:
            return [f"there is no module {show(path)}"]
        match, names = matches.modules[number], modules[number][1]
        lines: list[str] = []
        if match.kept_by is not None:
            keeper = self.rules[match.kept_by]
            lines.append(f"{_label(keeper)} took a module around it and says recursive: false")
        if not path and match.rule is not None:
            lines.append(
                "this is the model itself, which is never replaced; its kwargs still place it"
            )
        return lines + [self._verdict(rule, match, path, names) for rule in self.rules]

    def _verdict(self, rule: Rule, match: ModuleMatch, path: str, names: Sequence[str]) -> str:
        label = _label(rule)
        if rule.index == match.rule:
            return f"{label} wins: {_reason(rule)}, and no earlier rule does"
        if rule.index in match.added:
            return f"{label} adds its kwargs, as an earlier rule says continue: true"
        if rule.index in match.losers:
            if match.kept_by is not None:
                return f"{label} would match, but is kept away"
            return f"{label} loses: it matches too, but an earlier rule took the module"
        if rule.match_class is not None and not classes.matches(rule.match_class, names):
            return f"{label} does not match: the module is no {rule.match_class}"
        return f"{label} does not match: {show_pattern(rule.name or '')} is not found in the path"

    def _decide(self, matching: tuple[int, ...]) -> _Decision:
        known = self._decisions.get(matching)
        if known is None:
            known = self._decisions[matching] = _decide(self.rules, matching)
        return known

    def _root_problems(self, found: Sequence[ModuleMatch]) -> Iterable[Problem]:
        for match in found:
            if match.path or match.rule is None:
                continue
            rule = self.rules[match.rule]
            if rule.replace_class != DEFAULT:
                yield Problem(
                    "KT128",
                    f"rule {rule.index + 1} also matches the model itself, which is never replaced",
                    rule.place("match"),
                    help="anchor the pattern, or add a class, to leave the model out",
                    severity=Severity.NOTE,
                )

    def _too_long(self, modules: int, done: int) -> RuleError:
        return RuleError(
            Problem(
                "KT171",
                f"matching {len(self.rules):,} rules against {modules:,} modules takes longer than "
                f"{self._total:g} s",
                self.rules[0].place() if self.rules else None,
                (f"{done:,} modules were done",),
                "use fewer rules, or patterns that begin with ^ and a literal path",
            )
        )


class _Tally:
    def __init__(self, rules: int) -> None:
        self.matched = [0] * rules
        self.won = [0] * rules
        self.added = [0] * rules
        self.lost_to: list[Counter[int]] = [Counter() for _ in range(rules)]
        self.kept_away: list[Counter[int]] = [Counter() for _ in range(rules)]

    def count(self, matching: Sequence[int], decision: _Decision) -> None:
        for index in matching:
            self.matched[index] += 1
        if decision.rule is not None:
            self.won[decision.rule] += 1
        for index in decision.added:
            self.added[index] += 1
        if decision.stopped_by is not None:
            for index in decision.losers:
                self.lost_to[index][decision.stopped_by] += 1

    def keep_away(self, matching: Sequence[int], keeper: int) -> None:
        for index in matching:
            self.kept_away[index][keeper] += 1

    def result(self) -> tuple[RuleMatch, ...]:
        return tuple(
            RuleMatch(*row)
            for row in zip(
                self.matched,
                self.won,
                self.added,
                map(dict, self.lost_to),
                map(dict, self.kept_away),
                strict=True,
            )
        )


def _decide(rules: Sequence[Rule], matching: tuple[int, ...]) -> _Decision:
    if not matching:
        return _Decision(None, _NOTHING, (), (), None, True)
    applied: list[int] = []
    for index in matching:
        applied.append(index)
        if not rules[index].continue_:
            break
    kwargs: dict[str, Any] = {}
    for index in applied:
        kwargs.update(rules[index].kwargs)
    return _Decision(
        applied[0],
        MappingProxyType(kwargs),
        tuple(applied[1:]),
        matching[len(applied) :],
        applied[-1],
        all(rules[index].recursive for index in applied),
    )


def _keeper(rules: Sequence[Rule], decision: _Decision) -> int:
    applied = [i for i in (decision.rule, *decision.added) if i is not None]
    return next(i for i in applied if not rules[i].recursive)


def _label(rule: Rule) -> str:
    return f"rule {rule.index + 1} ({rule.place()})"


def _reason(rule: Rule) -> str:
    parts = []
    if rule.name is not None:
        parts.append(f"{show_pattern(rule.name or '')} is found in the path")
    if rule.match_class is not None:
        parts.append(f"the module is a {rule.match_class}")
    return " and ".join(parts)
