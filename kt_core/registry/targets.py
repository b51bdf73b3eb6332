"""Import the class behind a spec, at the moment a plan uses it."""

from __future__ import annotations

import importlib
import inspect

from kt_core.devices.backend import Backend
from kt_core.errors import PluginError
from kt_core.registry.loading import describe, isolated
from kt_core.registry.records import PluginRecord
from kt_core.registry.specs import (
    EXPERTS,
    LINEAR,
    ArchitectureSpec,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
)

Spec = OperatorSpec | KernelSpec | ArchitectureSpec | DeviceSpec

TORCH_EXTRA = ("torch", "transformers", "safetensors", "tokenizers", "jinja2")
"""Modules that come with ``kt-core[torch]``."""


def load_target(spec: Spec, plugin: PluginRecord) -> type:
    """Return the class that ``spec.target`` names.

    Raises ``PluginError``: KT220 when the ``torch`` extra is missing, KT216 for everything else
    that keeps it from being a usable class.
    """
    module_name, _, path = spec.target.partition(":")
    module, error = isolated(lambda: importlib.import_module(module_name))
    if isinstance(error, ModuleNotFoundError) and error.name in TORCH_EXTRA:
        raise missing_extra(f'"{spec.name}" needs {error.name}')
    if error is not None:
        raise _fault(spec, plugin, f"{module_name} cannot be imported: {describe(error)}")
    target: object = module
    for part in path.split("."):
        target = getattr(target, part, None)
    if target is None:
        raise _fault(spec, plugin, f'{module_name} has no "{path}"')
    if not isinstance(target, type):
        raise _fault(spec, plugin, f"it is of type {type(target).__name__}, not a class")
    if isinstance(spec, KernelSpec):
        _check_kernel(spec, plugin, target)
    else:
        _check_base(spec, plugin, target)
    if inspect.isabstract(target):
        missing = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise _fault(spec, plugin, f"{target.__name__} lacks the methods {missing}")
    return target


def missing_extra(message: str) -> PluginError:
    """Return the KT220 error: something needs torch or transformers, which are not installed."""
    return PluginError(
        PluginError.of(
            "KT220",
            f"{message}, which is not installed",
            facts=["kt-core without extras validates, inspects and lists; the rest needs torch"],
            help='pip install "kt-core[torch]"',
        ).problems
    )


def _check_kernel(spec: KernelSpec, plugin: PluginRecord, target: type) -> None:
    """A kernel of a kind that kt knows must be of that kind's base class."""
    from kt_core.operators.kernel import ExpertsKernel, LinearKernel

    base = {LINEAR: LinearKernel, EXPERTS: ExpertsKernel}.get(spec.kind)
    if base is not None and not issubclass(target, base):
        raise _fault(
            spec, plugin, f"{target.__name__} is no kt_core.operators.kernel.{base.__name__}"
        )


def _check_base(
    spec: OperatorSpec | ArchitectureSpec | DeviceSpec, plugin: PluginRecord, target: type
) -> None:
    """What takes a module's place is an Operator, what reads a family's files a Family."""
    base: type = Backend
    if isinstance(spec, OperatorSpec):
        from kt_core.operators.operator import Operator

        base = Operator
    elif isinstance(spec, ArchitectureSpec):
        from kt_core.models.family import Family

        base = Family
    if not issubclass(target, base):
        where = f"{base.__module__}.{base.__name__}"
        raise _fault(spec, plugin, f"{target.__name__} is no {where}")


def _fault(spec: Spec, plugin: PluginRecord, reason: str) -> PluginError:
    return PluginError(
        PluginError.of(
            "KT216",
            f'"{spec.name}" of {plugin.label} cannot be loaded from {spec.target}: {reason}',
            help=f"pip install --upgrade --force-reinstall {plugin.distribution}",
        ).problems
    )
