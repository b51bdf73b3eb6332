"""kt: run large language models with operators chosen by a rule file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kt_core.registry.hookspecs import hookimpl
    from kt_core.registry.specs import Accepted, KernelSpec, OperatorSpec, ProbeEnv, Rejected

# Public names and where they live. They are imported on first use, so that `import kt_core` stays
# free of torch, transformers and numpy.
_EXPORTS = {
    "Accepted": "kt_core.registry.specs",
    "KernelSpec": "kt_core.registry.specs",
    "OperatorSpec": "kt_core.registry.specs",
    "ProbeEnv": "kt_core.registry.specs",
    "Rejected": "kt_core.registry.specs",
    "hookimpl": "kt_core.registry.hookspecs",
}

__all__ = [
    "Accepted",
    "KernelSpec",
    "OperatorSpec",
    "ProbeEnv",
    "Rejected",
    "__version__",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
