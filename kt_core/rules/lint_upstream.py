"""What rules written for KTransformers' copies of model files meet in transformers' own.

Routers were ordinary linear layers there, and a part of Mixtral had another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kt_core.errors import Severity
from kt_core.registry.known import UPSTREAM_PREFIX
from kt_core.rules import patterns
from kt_core.rules.draft import Draft
from kt_core.rules.ktransformers import MODELS_PREFIX, OLD_PATHS, ROUTERS_ARE_LINEAR
from kt_core.rules.problems import Problems
from kt_core.rules.text import show, yaml_string

_ROUNDING = ("KLinearMarlin", "VLinearMarlin")


def lint_routers(rules: Sequence[Draft], problems: Problems) -> None:
    """Note each rule of a KTransformers file that would take a router of the file's own model.

    There routers of some models are ordinary linear layers. In transformers they are not any more,
    so the rule leaves them alone here; whoever compares results should know.
    """
    routers = list(_routers(rules))
    for draft in rules:
        kernel = (draft.kwargs or {}).get("generate_op")
        if (
            (draft.replace_class or "").startswith(UPSTREAM_PREFIX)
            and draft.match_class == "torch.nn.Linear"
            and draft.name is not None
            and draft.sound
            and kernel in _ROUNDING
        ):
            taken = next((path for path in routers if _finds(draft.name, path)), None)
            if taken is not None:
                problems.add(
                    "KT143",
                    f"the pattern also finds routers ({taken}), which KTransformers rounds to 4 bits",
                    draft.places["match.name"],
                    facts=[f"{kernel} makes 4-bit weights of what it is given there"],
                    help="nothing to do: here routers are no torch.nn.Linear and stay as precise as "
                    "they are stored",
                    severity=Severity.NOTE,
                )


def lint_old_paths(rules: Sequence[Draft], problems: Problems) -> None:
    """Warn of patterns with a word that transformers has no longer; the file names its model."""
    named = _model_files(rules)
    for module, (old, new) in OLD_PATHS.items():
        for draft in rules if named == {module} else ():
            if draft.name is not None and old in draft.name and draft.sound:
                problems.add(
                    "KT144",
                    f"{show(old)} is called {new} in transformers, so this pattern finds nothing",
                    draft.places["match.name"],
                    facts=["KTransformers has a copy of an older model file"],
                    help=f"name: {yaml_string(draft.name.replace(old, new))}",
                    severity=Severity.WARNING,
                )


def _model_files(rules: Sequence[Draft]) -> set[str]:
    """KTransformers' model files that ``match.class`` names."""
    classes = [draft.match_class or "" for draft in rules]
    return {
        name.removeprefix(MODELS_PREFIX).partition(".")[0]
        for name in classes
        if name.startswith(MODELS_PREFIX)
    }


def _routers(rules: Sequence[Draft]) -> Iterator[str]:
    """A path of a router of each model that the rules name classes of."""
    named = _model_files(rules)
    for module, path in ROUTERS_ARE_LINEAR.items():
        if module in named:
            yield path


def _finds(pattern: str, path: str) -> bool:
    try:
        return patterns.searcher(pattern)(path)
    except patterns.PatternTimeoutError:
        return False
