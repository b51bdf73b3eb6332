"""Options that came together through ``continue: true``, checked against the operator they reach.

A file alone cannot tell which rules meet in one module, so a rule behind one that continues is only
checked for its form. Once a model has been matched, the rest is checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kt_core.errors import Location, Problem
from kt_core.rules.draft import Draft
from kt_core.rules.lint_replace import lint_replace
from kt_core.rules.match import Matches, ModuleMatch
from kt_core.rules.model import Rule, RuleSet
from kt_core.rules.problems import Problems

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

_KWARGS = "replace.kwargs"


def check_merged(rules: RuleSet, matches: Matches, registry: Registry) -> tuple[Problem, ...]:
    """Return what is wrong with the kwargs of modules whose rule lets later rules add to them."""
    problems = Problems(rules.path)
    seen: set[tuple[int, ...]] = set()
    for match in matches.modules:
        if match.rule is None or not rules.rules[match.rule].continue_:
            continue
        applied = (match.rule, *match.added)
        if applied in seen:
            continue
        seen.add(applied)
        draft = _draft([rules.rules[index] for index in applied], match)
        lint_replace(draft, registry, problems, after_continue=False)
    return problems.all()


def _draft(applied: Sequence[Rule], match: ModuleMatch) -> Draft:
    first = applied[0]
    places: dict[str, Location] = {
        key: place for key, place in first.places.items() if not key.startswith(_KWARGS)
    }
    for rule in applied:
        for key, place in rule.places.items():
            name = key.removeprefix(f"{_KWARGS}.").partition(".")[0]
            if key.startswith(f"{_KWARGS}.") and name in rule.kwargs:
                places[key] = place
    return Draft(
        first.index,
        first.place(),
        replace_class=first.replace_class,
        kwargs=dict(match.kwargs),
        places=places,
        keys=places,
    )
