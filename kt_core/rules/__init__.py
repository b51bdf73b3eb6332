"""Rule files: read strictly, checked completely, matched as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kt_core.rules.model import DEFAULT, Rule, RuleSet

if TYPE_CHECKING:
    from kt_core.rules.load import Checked, check_file, check_text, load_rules
    from kt_core.rules.match import (
        Matcher,
        Matches,
        ModuleMatch,
        RuleMatch,
        explain_module,
        match_modules,
    )
    from kt_core.rules.schema import schema_text
    from kt_core.rules.select import RuleFile, available_rules, select_rules

__all__ = [
    "DEFAULT",
    "Checked",
    "Matcher",
    "Matches",
    "ModuleMatch",
    "Rule",
    "RuleFile",
    "RuleMatch",
    "RuleSet",
    "available_rules",
    "check_file",
    "check_text",
    "explain_module",
    "load_rules",
    "match_modules",
    "schema_text",
    "select_rules",
]

_HOMES = {
    "load": ("Checked", "check_file", "check_text", "load_rules"),
    "match": ("Matcher", "Matches", "ModuleMatch", "RuleMatch", "explain_module", "match_modules"),
    "schema": ("schema_text",),
    "select": ("RuleFile", "available_rules", "select_rules"),
}


def __getattr__(name: str) -> Any:
    # Checking, matching and choosing are used by different commands; each starts with what it
    # needs.
    for home, names in _HOMES.items():
        if name in names:
            import importlib

            value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
