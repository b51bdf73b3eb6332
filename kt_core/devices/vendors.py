"""Who made a device, by numbers that the bus or the library states; names are never searched."""

from __future__ import annotations

import enum
import re
from pathlib import Path


class GPUVendor(enum.StrEnum):
    """Makers of accelerators that torch, or a fork or plugin of it, can drive."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"
    APPLE = "Apple"
    HUAWEI = "Huawei"
    MOORE_THREADS = "Moore Threads"
    METAX = "MetaX"
    UNKNOWN = "unknown"


# Identifiers that the PCI-SIG assigned.
_BY_PCI = {
    0x10DE: GPUVendor.NVIDIA,
    0x1002: GPUVendor.AMD,
    0x8086: GPUVendor.INTEL,
    0x19E5: GPUVendor.HUAWEI,
    0x1ED5: GPUVendor.MOORE_THREADS,
    0x9999: GPUVendor.METAX,
}


def vendor_on_bus(domain: int, bus: int, device: int, root: Path = Path("/")) -> GPUVendor | None:
    """Ask the system who made the device at a PCI address; ``None`` where it does not say."""
    place = root / f"sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/vendor"
    try:
        text = place.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    if not re.fullmatch(r"0x[0-9a-f]{4}", text):
        return None
    return _BY_PCI.get(int(text, 16), GPUVendor.UNKNOWN)
