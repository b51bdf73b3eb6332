"""What a plugin says about itself: plain data, checked at registration, imported only on use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLUGIN_API = 1
"""The number a plugin's ``KT_PLUGIN_API`` must equal."""

LINEAR = "linear"
EXPERTS = "experts"


@dataclass(frozen=True)
class OperatorSpec:
    """A module that can take another module's place.

    ``name`` starts with the import package of its distribution (``kt_core.Linear``). ``target`` is
    a dotted path ``package.module:Class``; it is imported only when a plan uses it. ``replaces``
    names module classes it can stand for, as qualified names (empty: any). ``kwargs_schema`` is a
    JSON schema (draft 2020-12, an object schema) for ``replace.kwargs``; it must not contain
    ``$ref`` to anything outside itself. ``kernel_kind`` is set when the operator runs kernels of
    that kind, one per phase; their options are then accepted among its kwargs.
    """

    name: str
    target: str
    summary: str
    aliases: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    kwargs_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"}, hash=False)
    kernel_kind: str | None = None


@dataclass(frozen=True)
class KernelSpec:
    """The implementation an operator uses in one phase.

    ``kind`` is ``"linear"``, ``"experts"`` or a plugin's own word. ``devices`` are device types
    (``"cpu"``, ``"cuda"``). ``weight_formats`` names the stored types it accepts
    (:class:`kt_core.weights.QuantType` names such as ``"Q4_K"``, or ``"*"`` for all that can be
    dequantised). ``options_schema`` is a JSON object schema for the options it takes.
    """

    name: str
    target: str
    kind: str
    devices: tuple[str, ...]
    weight_formats: tuple[str, ...]
    summary: str
    aliases: tuple[str, ...] = ()
    options_schema: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}, hash=False
    )


@dataclass(frozen=True)
class ProbeEnv:
    """What a probe may look at. ``device`` is the device type the rule asks for (``"cpu"``).

    A probe must be cheap and free of side effects: it must not import torch, start a GPU context
    or execute an instruction it has not checked for. ``cpu_flags`` are lower-case flag names that
    both the CPU and the operating system support; ``environ`` is a snapshot of the environment.
    """

    device: str
    cpu_flags: frozenset[str]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Accepted:
    """The operator or kernel can run here. ``detail`` says how ("AVX-512 VNNI", "BLIS 5.3")."""

    detail: str = ""


@dataclass(frozen=True)
class Rejected:
    """It cannot, for each of ``reasons``; ``help`` is one line that says what to change."""

    reasons: tuple[str, ...]
    help: str = ""


ProbeResult = Accepted | Rejected
