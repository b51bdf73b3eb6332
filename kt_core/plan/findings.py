"""Warnings about rules that do nothing and tensors that nobody takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kt_core.errors import Location, Problem, Severity
from kt_core.plan.model import RulePlan


def tensors_left_over(names: Sequence[str]) -> Problem:
    """KT333: a bias that nobody takes would be missing from the answer without a word."""
    return Problem(
        "KT333",
        f"no module of the model takes {len(names)} of the file's tensors",
        facts=(f"left over: {', '.join(names[:6])}",),
        help="the file may be of a variant of the model that computes something else",
        severity=Severity.WARNING,
    )


def rule_without_effect(rule: RulePlan, where: Location) -> Iterator[Problem]:
    """KT330 for a rule that reaches no module, KT331 for one whose modules earlier rules take."""
    if rule.matched == 0 and rule.kept_away:
        count = sum(rule.kept_away.values())
        yield Problem(
            "KT330",
            f"rule {rule.index + 1} is kept from all {count} modules it would match",
            where,
            (f"kept away by recursive: false of: {_counted(rule.kept_away)}",),
            f"delete this rule, or recursive: false from rule {min(rule.kept_away) + 1}",
            Severity.WARNING,
        )
    elif rule.matched == 0:
        yield Problem(
            "KT330",
            f"rule {rule.index + 1} matches no module of this model",
            where,
            tuple(
                f"{key}: {value}"
                for key, value in (("name", rule.name), ("class", rule.match_class))
                if value is not None
            ),
            "list the modules: kt plan --modules",
            Severity.WARNING,
        )
    elif rule.won == 0 and rule.lost_to:
        yield Problem(
            "KT331",
            f"rule {rule.index + 1} is shadowed: earlier rules take all {rule.matched} modules it "
            "matches",
            where,
            (f"taken by: {_counted(rule.lost_to)}",),
            "move it up, or delete it",
            Severity.WARNING,
        )


def _counted(rules: Mapping[int, int]) -> str:
    """``{0: 3}`` -> ``rule 1 (3)``."""
    return ", ".join(f"rule {index + 1} ({count})" for index, count in sorted(rules.items()))
