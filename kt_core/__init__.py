"""kt: run large language models with operators chosen by a rule file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kt_core.errors import KtError
    from kt_core.plan.build import make_plan
    from kt_core.plan.model import Plan
    from kt_core.registry.hookspecs import hookimpl
    from kt_core.registry.specs import (
        Accepted,
        AliasSpec,
        ArchitectureSpec,
        CommandSpec,
        DeviceSpec,
        KernelSpec,
        OperatorSpec,
        ProbeEnv,
        Rejected,
    )
    from kt_core.runtime.generate import prefill_and_generate, stream
    from kt_core.runtime.inject import optimize_and_load_gguf
    from kt_core.runtime.load import load

# Public names and where they live. They are imported on first use, so that `import kt_core` stays
# free of torch, transformers and numpy.
_EXPORTS = {
    "Accepted": "kt_core.registry.specs",
    "AliasSpec": "kt_core.registry.specs",
    "ArchitectureSpec": "kt_core.registry.specs",
    "CommandSpec": "kt_core.registry.specs",
    "DeviceSpec": "kt_core.registry.specs",
    "KernelSpec": "kt_core.registry.specs",
    "KtError": "kt_core.errors",
    "OperatorSpec": "kt_core.registry.specs",
    "Plan": "kt_core.plan.model",
    "ProbeEnv": "kt_core.registry.specs",
    "Rejected": "kt_core.registry.specs",
    "hookimpl": "kt_core.registry.hookspecs",
    "load": "kt_core.runtime.load",
    "make_plan": "kt_core.plan.build",
    "optimize_and_load_gguf": "kt_core.runtime.inject",
    "prefill_and_generate": "kt_core.runtime.generate",
    "stream": "kt_core.runtime.generate",
}

__all__ = [
    "Accepted",
    "AliasSpec",
    "ArchitectureSpec",
    "CommandSpec",
    "DeviceSpec",
    "KernelSpec",
    "KtError",
    "OperatorSpec",
    "Plan",
    "ProbeEnv",
    "Rejected",
    "__version__",
    "hookimpl",
    "load",
    "make_plan",
    "optimize_and_load_gguf",
    "prefill_and_generate",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
