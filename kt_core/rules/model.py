"""A rule file after parsing: plain data with the places it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kt_core.errors import Location

DEFAULT = "default"
"""``replace.class`` that keeps the module and only places it."""


@dataclass(frozen=True)
class Rule:
    """One entry of ``rules``.

    ``name`` is a regular expression searched in the dotted module path, ``match_class`` a qualified
    class name; at least one is set. ``replace_class`` is as written (an operator's name, an alias
    or ``"default"``). ``continue_`` lets later rules add kwargs to the same module. ``places`` maps
    the dotted key path inside the rule (``"match.name"``, ``"replace.kwargs.generate_op"``) to
    where its *value* stands in the file; ``""`` is the rule itself.
    """

    index: int
    name: str | None
    match_class: str | None
    replace_class: str
    kwargs: Mapping[str, Any]
    recursive: bool
    continue_: bool
    places: Mapping[str, Location] = field(compare=False, repr=False, default_factory=dict)

    def place(self, key: str = "") -> Location:
        """Where ``key`` stands, or the nearest enclosing key that has a place."""
        while key not in self.places and key:
            key = key.rpartition(".")[0]
        return self.places.get(key, Location("<rules>"))


@dataclass(frozen=True)
class RuleSet:
    """A whole rule file. ``path`` is as the user gave it (``"<string>"`` for text)."""

    path: str
    rules: tuple[Rule, ...]
    version: int = 1
    architectures: tuple[str, ...] = ()
    description: str = ""
    places: Mapping[str, Location] = field(compare=False, repr=False, default_factory=dict)
