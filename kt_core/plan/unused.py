"""Rules that do nothing for this model, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kt_core.errors import Problem, Severity
from kt_core.plan.model import RulePlan
from kt_core.rules.model import RuleSet


def unused_rules(rules: Iterable[RulePlan], ruleset: RuleSet) -> Iterator[Problem]:
    """Yield a warning for each rule that takes no module."""
    for rule in rules:
        where = ruleset.rules[rule.index].place()
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
                f"rule {rule.index + 1} is shadowed: earlier rules take all "
                f"{rule.matched} modules it matches",
                where,
                (f"taken by: {_counted(rule.lost_to)}",),
                "move it up, or delete it",
                Severity.WARNING,
            )


def _counted(rules: Mapping[int, int]) -> str:
    """``{0: 3}`` -> ``rule 1 (3)``."""
    return ", ".join(f"rule {index + 1} ({count})" for index, count in sorted(rules.items()))
