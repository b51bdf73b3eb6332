"""What a kind of devices can say of itself. Plugins bring further ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kt_core.devices.vendors import GPUVendor


@dataclass(frozen=True)
class Device:
    """One device. Memory is in bytes; ``detail`` is what its maker counts generations by."""

    name: str
    title: str
    vendor: GPUVendor
    memory: int | None = None
    memory_free: int | None = None
    detail: str = ""


class Backend(ABC):
    """A kind of devices. Built without arguments, on first use only; may import torch."""

    kind: str

    @abstractmethod
    def missing(self) -> str | None:
        """Say why there is no device of this kind here, or ``None`` if there is one."""

    @abstractmethod
    def count(self) -> int:
        """How many there are; 0 where :meth:`missing` says why."""

    @abstractmethod
    def describe(self, index: int) -> Device:
        """Describe one of them."""
