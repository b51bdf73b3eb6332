"""A rule file as far as it could be read: what the checks work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kt_core.errors import Location
from kt_core.rules.model import DEFAULT


@dataclass
class Draft:
    """A rule as far as it could be read. ``None`` stands for what is wrong or was not given."""

    index: int
    place: Location
    name: str | None = None
    match_class: str | None = None
    replace_class: str | None = DEFAULT
    kwargs: dict[str, Any] | None = field(default_factory=dict)
    recursive: bool = True
    continue_: bool = False
    sound: bool = True
    """Whether ``match`` was read without error, so that it can be compared with other rules'."""
    places: dict[str, Location] = field(default_factory=dict)
    """Dotted key -> where its value stands."""
    keys: dict[str, Location] = field(default_factory=dict)
    """Dotted key -> where the key itself stands."""
    unreadable: set[str] = field(default_factory=set)
    """Kwargs that were given with a value that could not be read; they are not in ``kwargs``."""

    def __str__(self) -> str:
        return f"rule {self.index + 1} (line {self.place.line})"


@dataclass
class Document:
    """A whole file as far as it could be read."""

    rules: list[Draft] = field(default_factory=list)
    version: int = 1
    architectures: tuple[str, ...] = ()
    description: str = ""
    places: dict[str, Location] = field(default_factory=dict)
