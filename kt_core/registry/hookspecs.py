"""The hooks a plugin may implement. The entry point group is ``kt_core.plugins``.

An entry point names a module (or an object) whose functions carry ``@kt_core.hookimpl``; the module
sets ``KT_PLUGIN_API = 1`` and imports nothing heavy: specs are data, code is named by dotted
strings.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from kt_core.registry.specs import (
    AliasSpec,
    ArchitectureSpec,
    CommandSpec,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
    ProbeEnv,
    ProbeResult,
)

PROJECT = "kt_core"
ENTRY_POINT_GROUP = "kt_core.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def kt_register_operators() -> Iterable[OperatorSpec]:
    """Return the operators this plugin brings."""
    return ()


@hookspec
def kt_register_kernels() -> Iterable[KernelSpec]:
    """Return the kernels this plugin brings."""
    return ()


@hookspec
def kt_register_rules() -> Iterable[str]:
    """Return rule files, as ``package:path/inside/it.yaml`` resource strings."""
    return ()


@hookspec
def kt_register_aliases() -> Iterable[AliasSpec]:
    """Return further names for operators and kernels, also for those of other distributions."""
    return ()


@hookspec
def kt_register_architectures() -> Iterable[ArchitectureSpec]:
    """Return the model families this plugin teaches kt to read."""
    return ()


@hookspec
def kt_register_commands() -> Iterable[CommandSpec]:
    """Return commands for ``kt``. They are looked up when a word is no command of kt's own."""
    return ()


@hookspec
def kt_register_devices() -> Iterable[DeviceSpec]:
    """Return the kinds of devices this plugin brings, such as those of an extension of torch."""
    return ()


@hookspec
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> ProbeResult | None:
    """Say whether ``spec``, one of this plugin's own, can run in ``env``; ``None`` means yes."""
    return None


@hookspec
def kt_report(env: ProbeEnv) -> Iterable[str]:
    """Return lines for ``kt doctor``: library versions, instruction sets, what is missing."""
    return ()
