"""What a plugin says about itself: plain data, checked at registration, imported only on use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PLUGIN_API = 1
"""The number a plugin's ``KT_PLUGIN_API`` must equal; docs/plugin-api.md says when it changes."""

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
    that kind, one per phase; their options are then accepted among its kwargs. ``checks_plan``: the
    target's ``check_plan`` is asked about every plan that uses it, for which it is imported then.
    """

    name: str
    target: str
    summary: str
    aliases: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    kwargs_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"}, hash=False)
    kernel_kind: str | None = None
    checks_plan: bool = False


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
class AliasSpec:
    """A further name for an operator or kernel, of this plugin or of another distribution.

    ``name`` is what rule files may write, ``stands_for`` a registered name. It is for names that a
    plugin does not own the operator of, such as those of a company's older rule files; an operator's
    own further names go into its ``aliases``. An alias of something that is not installed is kept, and
    a rule that uses it is told what is missing.
    """

    name: str
    stands_for: str
    what: Literal["operator", "kernel"] = "kernel"


@dataclass(frozen=True)
class ArchitectureSpec:
    """A model family: how its files name and lay out what a transformers class needs.

    ``name`` starts with the plugin's package. ``gguf`` is the file's ``general.architecture``,
    ``architectures`` are transformers' causal-LM classes and ``model_types`` their configurations'
    ``model_type``. ``target`` is a subclass of :class:`kt_core.models.family.Family`, imported only for
    a model of the family. The core's own families come first.
    """

    name: str
    target: str
    gguf: str
    architectures: tuple[str, ...]
    summary: str
    model_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommandSpec:
    """A command of ``kt``: ``kt NAME`` imports ``module`` and calls what it defines.

    The module has ``add_arguments(parser)``, which fills an :class:`argparse.ArgumentParser`, and
    ``run(args)``, which returns the exit code: 0 fine, 1 input wrong, 2 usage, 3 installation wrong.
    Its errors are :class:`kt_core.KtError`.
    """

    name: str
    module: str
    summary: str


@dataclass(frozen=True)
class DeviceSpec:
    """A kind of devices that rules may name.

    ``name`` is torch's word for it (``"npu"``), ``target`` a dotted path ``package.module:Class`` of
    a :class:`kt_core.devices.backend.Backend`, imported only when somebody asks for devices.
    """

    name: str
    target: str
    summary: str


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
