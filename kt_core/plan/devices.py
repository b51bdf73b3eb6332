"""Which devices a plan may use: those that are here, and those promised to exist elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kt_core.devices.kinds import canonical, kind_of
from kt_core.devices.manager import DeviceManager
from kt_core.registry.registry import Registry, default_registry

__all__ = ["Devices", "canonical", "default_device", "kind_of"]


def default_device() -> str:
    """The first GPU, else the CPU."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


class Devices:
    """The devices a plan may use: those of this machine, and those that the user said to assume."""

    def __init__(self, assumed: Iterable[str] = (), registry: Registry | None = None) -> None:
        self.assumed = frozenset(canonical(name) for name in assumed)
        self._registry = registry
        self._manager: DeviceManager | None = None

    def missing(self, device: str) -> str | None:
        """Say why ``device`` cannot be used here, or ``None`` if it can."""
        if device == "cpu" or device in self.assumed:
            return None
        if self._manager is None:
            self._manager = DeviceManager.of(self._registry or default_registry())
        return self._manager.missing(device)
