"""What is known of each plugin after discovery, whether or not it could be used."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from kt_core.errors import Location, Problem, Severity
from kt_core.registry.specs import (
    AliasSpec,
    ArchitectureSpec,
    CommandSpec,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
)

Spec = OperatorSpec | KernelSpec
S = TypeVar("S", OperatorSpec, KernelSpec, covariant=True)


class State(enum.StrEnum):
    """What became of a plugin. Only a ready one takes part in anything."""

    READY = "ready"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    DUPLICATE = "duplicate"
    DISABLED = "disabled"
    NOT_LOADED = "not loaded"


@dataclass(frozen=True)
class RuleResource:
    """A rule file inside an installed package: ``path`` is relative to ``package``, with ``/``."""

    plugin: str
    package: str
    path: str

    def __str__(self) -> str:
        return f"{self.package}:{self.path}"


BROUGHT = ("operators", "kernels", "rules", "aliases", "architectures", "commands")
"""The fields of a record that hold what a plugin brings."""


@dataclass(frozen=True)
class PluginRecord:
    """One plugin, identified by the name of its entry point.

    ``code`` and ``reason`` are set when ``state`` is not ``ready``; ``facts`` are further lines
    about the cause and ``help`` is one line that says what to do. A refused plugin registers
    nothing: ``operators``, ``kernels`` and all the others are then empty, and ``claims`` holds the
    names (aliases included) it asked for, as far as they became known. ``notes`` are remarks that refuse
    nothing. ``location`` is the folder the distribution was found in and ``load_seconds`` the time
    its registration module took.
    """

    name: str
    distribution: str
    version: str
    module: str
    package: str = ""
    state: State = State.READY
    code: str = ""
    reason: str = ""
    facts: tuple[str, ...] = ()
    help: str = ""
    operators: tuple[OperatorSpec, ...] = ()
    kernels: tuple[KernelSpec, ...] = ()
    rules: tuple[RuleResource, ...] = ()
    aliases: tuple[AliasSpec, ...] = ()
    architectures: tuple[ArchitectureSpec, ...] = ()
    commands: tuple[CommandSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    claims: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    location: str = ""
    load_seconds: float = 0.0

    @property
    def label(self) -> str:
        """Distribution and version, as shown to users."""
        return f"{self.distribution} {self.version}".strip()

    def problem(self, location: Location | None = None) -> Problem | None:
        """Return why this plugin is refused, or ``None`` when it is not."""
        if not self.code:
            return None
        severity = Severity.NOTE if self.state is State.DISABLED else Severity.ERROR
        return Problem(
            self.code,
            f'plugin "{self.name}" ({self.label}) is {self.state}: {self.reason}',
            location,
            self.facts,
            self.help or None,
            severity,
        )


@dataclass(frozen=True)
class Found(Generic[S]):
    """A registered spec together with the plugin it came from."""

    spec: S
    plugin: PluginRecord
