"""Kinds of devices as words. Text only, nothing is asked of any library."""

from __future__ import annotations

import re

from kt_core.errors import UsageError

BUILT_IN = ("cpu", "cuda", "xpu", "npu", "mps")
"""In torch's words; ``cuda`` is also what torch calls AMD's GPUs under ROCm."""

_SINGLE = ("cpu", "mps")
"""Kinds of which there is one, so that it has no number."""

_NAME = re.compile(r"([a-z][a-z0-9]*)(?::([0-9]+))?\Z")
_added: list[str] = []


def known_kinds() -> tuple[str, ...]:
    """Return all kinds that a rule may name: torch's, and those that plugins registered."""
    return (*BUILT_IN, *_added)


def add_kind(kind: str) -> None:
    """Let rules of this process name devices of another ``kind``, as a plugin asked for."""
    if kind not in known_kinds():
        _added.append(kind)


def split(name: str) -> tuple[str, int] | None:
    """``cuda:1`` -> ``("cuda", 1)``; ``None`` for anything that is no device name."""
    found = _NAME.match(name)
    if found is None or found[1] not in known_kinds() or len(found[2] or "") > 6:
        return None
    number = int(found[2] or 0)
    return None if found[1] in _SINGLE and number else (found[1], number)


def canonical(name: str) -> str:
    """``cuda`` -> ``cuda:0``; ``cpu:0`` -> ``cpu``.

    Raises:
        UsageError: KT710 for anything that is no device name.
    """
    found = split(name)
    if found is None:
        raise UsageError.of(
            "KT710", f'"{name}" is no device', help=f"use {', '.join(known_kinds())} or cuda:1"
        )
    kind, number = found
    return kind if kind in _SINGLE else f"{kind}:{number}"


def kind_of(device: str) -> str:
    """``cuda:1`` -> ``cuda``."""
    return device.partition(":")[0]
