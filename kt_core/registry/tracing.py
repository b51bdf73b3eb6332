"""``KT_TRACE_PLUGINS``: show on stderr every import of a plugin and every call of its hooks."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kt_core.registry.isolated import describe

if TYPE_CHECKING:
    import pluggy

    from kt_core.registry.candidates import Candidate

TRACE_VARIABLE = "KT_TRACE_PLUGINS"
"""Set to 1, it shows what plugins are asked and how long they take."""

_MAX = 60


def tracing(environ: Mapping[str, str]) -> bool:
    """Return whether calls are to be shown."""
    return environ.get(TRACE_VARIABLE, "") not in ("", "0")


def trace_import(candidate: Candidate, seconds: float, error: BaseException | None) -> None:
    """Show one import of a registration module."""
    end = "done" if error is None else describe(error)
    _show(candidate, f"import {candidate.module}", seconds, end)


def trace_calls(manager: pluggy.PluginManager, candidate: Candidate) -> None:
    """Show every call of a hook through ``manager`` from now on."""
    started: list[float] = []

    def before(name: str, implementations: Any, arguments: Mapping[str, Any]) -> None:
        started.append(time.perf_counter())

    def after(outcome: Any, name: str, implementations: Any, arguments: Mapping[str, Any]) -> None:
        seconds = time.perf_counter() - started.pop()
        if not implementations:
            return
        told = ", ".join(str(getattr(value, "name", None) or getattr(value, "device", value))
                         for value in arguments.values())  # fmt: skip
        error = outcome.exception
        end = describe(error) if error is not None else _summary(outcome.get_result())
        _show(candidate, f"{name}({told})", seconds, end)

    manager.add_hookcall_monitoring(before, after)


def _summary(results: list[Any]) -> str:
    """Say what a hook returned: how many items, or the value itself in short."""
    if len(results) == 1 and isinstance(results[0], list | tuple):
        return f"{len(results[0])} item{'s' if len(results[0]) != 1 else ''}"
    text = " ".join(repr(results[0]).split()) if results else "None"
    return text if len(text) <= _MAX else f"{text[: _MAX - 1]}…"


def _show(candidate: Candidate, what: str, seconds: float, end: str) -> None:
    who = f"{candidate.distribution} {candidate.version}".strip()
    sys.stderr.write(f"kt: {candidate.name} ({who}): {what}: {end}, {seconds * 1e3:.1f} ms\n")
