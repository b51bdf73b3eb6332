"""What is known about one rule's operator and options while they are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kt_core.errors import Location
from kt_core.rules.draft import Draft
from kt_core.rules.model import DEFAULT

if TYPE_CHECKING:
    from kt_core.registry.specs import KernelSpec, OperatorSpec

KWARGS = "replace.kwargs"


@dataclass
class Replacement:
    """What is known about one rule's operator while its kwargs are checked."""

    draft: Draft
    kwargs: dict[str, Any]
    operator: OperatorSpec | None
    kernels: dict[str, KernelSpec] = field(default_factory=dict)
    unresolved: bool = False
    """A kernel is not registered, so that its options are not known."""
    bad_devices: set[Location] = field(default_factory=set)
    """Where a device stands about which something has been said."""

    def value(self, name: str) -> Location:
        """Where the value of a kwarg stands."""
        return self.draft.places.get(f"{KWARGS}.{name}", self.draft.place)

    def key(self, name: str) -> Location:
        """Where its key stands."""
        return self.draft.keys.get(f"{KWARGS}.{name}", self.draft.place)

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.operator.name if self.operator is not None else DEFAULT
