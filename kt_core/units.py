"""Numbers with units, for people."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """``1536`` -> ``1.5 KiB``. Nothing is above GiB: sums of memory are compared in one unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
