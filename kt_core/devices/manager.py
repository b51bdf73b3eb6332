"""All devices of this machine, over every kind that is known here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from kt_core.devices.backend import Backend, Device
from kt_core.devices.kinds import canonical, split
from kt_core.devices.vendors import GPUVendor

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry


class DeviceManager:
    """Answers by canonical name (``"cuda:1"``). Nothing is asked before it is needed, and once."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = dict(backends)
        self._devices: dict[str, Device] = {}

    @classmethod
    def of(cls, registry: Registry) -> DeviceManager:
        """Build one of the kinds that are registered.

        Raises:
            PluginError: KT216 for a plugin whose class cannot be imported.
        """
        found: dict[str, Backend] = {}
        for spec in registry.devices():
            target: type[Backend] = registry.load_device(spec)
            found[spec.name] = target()
        return cls(found)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that are known, present or not."""
        return tuple(self._backends)

    def devices(self) -> Iterator[Device]:
        """Every device that is here, the CPU first."""
        for kind, backend in self._backends.items():
            for index in range(backend.count()):
                yield self.device(canonical(f"{kind}:{index}"))

    def device(self, name: str) -> Device:
        """Describe one.

        Raises:
            LookupError: there is no such device.
        """
        reason = self.missing(name)
        if reason is not None:
            raise LookupError(f"{name}: {reason}")
        if name not in self._devices:
            kind, index = split(name) or ("", 0)
            self._devices[name] = self._backends[kind].describe(index)
        return self._devices[name]

    def missing(self, name: str) -> str | None:
        """Say why the device cannot be used here, or ``None`` if it can."""
        kind, index = split(name) or ("", 0)
        backend = self._backends.get(kind)
        if backend is None:
            return f"no plugin brings devices of the kind {name.partition(':')[0]}"
        reason = backend.missing()
        if reason is not None:
            return reason
        count = backend.count()
        if index >= count:
            return f"torch sees {count} {kind} device{'s' if count > 1 else ''}, numbered from 0"
        return None

    def absent(self) -> dict[str, str]:
        """Kinds of which nothing is here, with the reason."""
        found = ((kind, backend.missing()) for kind, backend in self._backends.items())
        return {kind: reason for kind, reason in found if reason is not None}

    def vendor(self, name: str) -> GPUVendor:
        """Who made a device; unknown for one that is not here."""
        return GPUVendor.UNKNOWN if self.missing(name) else self.device(name).vendor


@cache
def device_manager() -> DeviceManager:
    """The devices of this process, by the kinds that are registered in it."""
    from kt_core.registry.registry import default_registry

    return DeviceManager.of(default_registry())
