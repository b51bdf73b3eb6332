"""The kinds of devices that torch itself drives, as it reports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kt_core.devices.backend import Backend, Device
from kt_core.devices.vendors import GPUVendor, vendor_on_bus


class Cpu(Backend):
    """The host's processor, which is always there."""

    kind = "cpu"

    def missing(self) -> str | None:
        """Nothing is missing."""
        return None

    def count(self) -> int:
        """One, whatever it consists of."""
        return 1

    def describe(self, index: int) -> Device:
        """Model and memory, as the system states them."""
        from kt_core.registry import machine

        memory = machine.memory()
        return Device("cpu", machine.cpu_model(), GPUVendor.UNKNOWN, memory.total, memory.available)


class _Accelerator(Backend):
    """A module of torch that has ``is_available`` and ``device_count``, such as ``torch.cuda``."""

    vendor = GPUVendor.UNKNOWN
    needs = ""
    """What to have installed for it, for the message."""

    def module(self) -> Any:
        """The part of torch that drives the kind; ``None`` where this torch has none."""
        return getattr(torch, self.kind, None)

    def missing(self) -> str | None:
        """See :class:`Backend`."""
        if self.module() is None:
            return f"torch {torch.__version__} has no {self.kind} devices; {self.needs}"
        if self.count() == 0:
            return f"torch {torch.__version__} sees no {self.kind} device"
        return None

    def count(self) -> int:
        """See :class:`Backend`."""
        module = self.module()
        if module is None or not module.is_available():
            return 0
        return int(module.device_count())

    def describe(self, index: int) -> Device:
        """See :class:`Backend`."""
        module = self.module()
        properties = module.get_device_properties(index)
        return Device(
            f"{self.kind}:{index}",
            str(getattr(properties, "name", self.kind)),
            self.vendor_of(properties),
            getattr(properties, "total_memory", None),
            _free_memory(module, index),
            self.detail_of(properties),
        )

    def vendor_of(self, properties: Any) -> GPUVendor:
        """The maker by the kind alone."""
        return self.vendor

    def detail_of(self, properties: Any) -> str:
        """Nothing more to say."""
        return ""


class Cuda(_Accelerator):
    """What torch drives as ``cuda``: NVIDIA's GPUs, AMD's under ROCm, others through their forks."""

    kind = "cuda"
    needs = "install a build of torch for CUDA or ROCm"
    root = Path("/")

    def vendor_of(self, properties: Any) -> GPUVendor:
        """The maker by the device's own bus address, else by what torch was built for."""
        parts = [getattr(properties, f"pci_{part}_id", None) for part in _ADDRESS]
        domain, bus, device = (part if isinstance(part, int) else -1 for part in parts)
        if min(domain, bus, device) >= 0:
            found = vendor_on_bus(domain, bus, device, self.root)
            if found is not None:
                return found
        if torch.version.hip is not None:
            return GPUVendor.AMD
        return GPUVendor.NVIDIA if torch.version.cuda is not None else GPUVendor.UNKNOWN

    def detail_of(self, properties: Any) -> str:
        """Architecture under ROCm, compute capability under CUDA."""
        if torch.version.hip is not None:
            return f"ROCm {torch.version.hip}, {getattr(properties, 'gcnArchName', '')}".rstrip(
                ", "
            )
        return f"capability {properties.major}.{properties.minor}"


class Xpu(_Accelerator):
    """Intel's GPUs."""

    kind = "xpu"
    vendor = GPUVendor.INTEL
    needs = "install a build of torch for Intel GPUs"


class Npu(_Accelerator):
    """Ascend's processors, which the package torch_npu adds to torch."""

    kind = "npu"
    vendor = GPUVendor.HUAWEI
    needs = "install torch_npu"


class Mps(_Accelerator):
    """The GPU of Apple's chips, of which torch knows one."""

    kind = "mps"
    vendor = GPUVendor.APPLE

    def missing(self) -> str | None:
        """See :class:`Backend`."""
        if torch.backends.mps.is_available():
            return None
        if not torch.backends.mps.is_built():
            return f"torch {torch.__version__} is not built for Apple's GPUs"
        return "this machine has no GPU of Apple's that torch can use"

    def count(self) -> int:
        """See :class:`Backend`."""
        return int(torch.backends.mps.is_available())

    def describe(self, index: int) -> Device:
        """What torch knows of it."""
        limit = getattr(torch.mps, "recommended_max_memory", None)
        memory = int(limit()) if limit is not None else None
        return Device("mps", "Apple GPU", self.vendor, memory)


_ADDRESS = ("domain", "bus", "device")


def torch_device(name: str) -> torch.device:
    """``torch.device(name)``, also for kinds whose package is not installed here.

    A plan for another machine names devices that this torch has no word for; they then stand under
    the name that torch keeps for extensions.
    """
    try:
        return torch.device(name)
    except RuntimeError:
        return torch.device("privateuseone", int(name.partition(":")[2] or 0))


def _free_memory(module: Any, index: int) -> int | None:
    """Free bytes, where the kind can tell without starting more than a context."""
    ask = getattr(module, "mem_get_info", None)
    if ask is None:
        return None
    try:
        return int(ask(index)[0])
    except RuntimeError:  # a device that is in use by another process alone, or hung
        return None
