"""Routers that a rule would round coarsely: small sums decide there which experts a token meets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kt_core.errors import Location, Problem, Severity
from kt_core.operators.kernel import Accuracy
from kt_core.plan.skeleton import ModuleInfo

COARSE = 0.1
"""A kernel that promises no more than that rounds weights to some four bits."""

_ENDINGS = (".mlp.gate", ".mlp.router", ".shared_expert_gate")


class Routers:
    """Collects routers by the rule and the kernel that would round them."""

    def __init__(self) -> None:
        self._found: dict[tuple[Location, str], list[str]] = {}

    def look_at(
        self, module: ModuleInfo, kernel: str, promise: Accuracy | None, place: Location | None
    ) -> None:
        """Take note of ``module`` if it is a router and ``kernel`` would round it coarsely."""
        if promise is None or promise.relative < COARSE or place is None:
            return
        if module.path.endswith(_ENDINGS) or "Router" in module.class_name:
            self._found.setdefault((place, kernel), []).append(module.path)

    def problems(self) -> Iterator[Problem]:
        """One warning per rule."""
        for (place, kernel), paths in self._found.items():
            yield _warning(place, kernel, paths)


def _warning(place: Location, kernel: str, paths: Sequence[str]) -> Problem:
    ending = paths[0].rpartition(".")[2]
    return Problem(
        "KT334",
        f"{kernel} would round {len(paths)} routers coarsely, {paths[0]} among them",
        place,
        ("a router's small differences decide which experts a token meets",),
        f"leave them out of the rule: name: '^(?!.*\\.{ending}$)…'",
        Severity.WARNING,
    )
