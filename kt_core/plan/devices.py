"""Device names: which exist here, and which were promised to exist elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from kt_core.errors import UsageError

_NAME = re.compile(r"^(cpu|cuda|xpu|npu)(?::(\d+))?$")


def canonical(name: str) -> str:
    """``cuda`` -> ``cuda:0``; ``cpu:0`` -> ``cpu``.

    Raises:
        UsageError: KT710 for anything that is no device name.
    """
    found = _NAME.match(name)
    if found is None:
        raise UsageError.of(
            "KT710", f'"{name}" is no device', help="use cpu, cuda, cuda:1, xpu or npu"
        )
    kind, number = found.groups()
    return kind if kind == "cpu" else f"{kind}:{int(number or 0)}"


def kind_of(device: str) -> str:
    """``cuda:1`` -> ``cuda``."""
    return device.partition(":")[0]


def default_device() -> str:
    """The first GPU, else the CPU."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


class Devices:
    """The devices a plan may use: those of this machine, and those that the user said to assume."""

    def __init__(self, assumed: Iterable[str] = ()) -> None:
        self.assumed = frozenset(canonical(name) for name in assumed)

    def missing(self, device: str) -> str | None:
        """Say why ``device`` cannot be used here, or ``None`` if it can."""
        if device == "cpu" or device in self.assumed:
            return None
        kind, _, number = device.partition(":")
        count = _count(kind)
        if count == 0:
            return f"torch {torch.__version__} sees no {kind} device"
        if int(number) >= count:
            return f"torch sees {count} {kind} device{'s' if count > 1 else ''}, numbered from 0"
        return None


def _count(kind: str) -> int:
    backend = getattr(torch, kind, None)
    if backend is None or not backend.is_available():
        return 0
    return int(backend.device_count())
