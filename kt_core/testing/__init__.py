"""Contract tests for authors of operators and kernels, and what they need: models, files, oracles.

Three lines test a kernel::

    from kt_core.testing import check_kernel

    def test_linear():
        check_kernel("kt_toy.linear", tolerance=0.01)

Everything is imported on first use, so that the pytest plugin that comes with kt-core costs a test run
nothing it does not ask for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kt_core.testing.check import check_kernel, check_model, check_operator
    from kt_core.testing.inputs import attention_inputs
    from kt_core.testing.kernels import kernel_cases, relative_error
    from kt_core.testing.operators import operator_cases
    from kt_core.testing.oracle import experts_oracle, linear_oracle
    from kt_core.testing.packed import random_packed
    from kt_core.testing.registry import fake_plugin, fake_registry, write_distribution
    from kt_core.testing.tiny import write_tiny_llama
    from kt_core.testing.tiny_moe import write_tiny_moe

_EXPORTS = {
    "attention_inputs": "inputs",
    "check_kernel": "check",
    "check_model": "check",
    "check_operator": "check",
    "experts_oracle": "oracle",
    "fake_plugin": "registry",
    "fake_registry": "registry",
    "kernel_cases": "kernels",
    "linear_oracle": "oracle",
    "operator_cases": "operators",
    "random_packed": "packed",
    "relative_error": "kernels",
    "write_distribution": "registry",
    "write_tiny_llama": "tiny",
    "write_tiny_moe": "tiny_moe",
}

__all__ = [
    "attention_inputs",
    "check_kernel",
    "check_model",
    "check_operator",
    "experts_oracle",
    "fake_plugin",
    "fake_registry",
    "kernel_cases",
    "linear_oracle",
    "operator_cases",
    "random_packed",
    "relative_error",
    "write_distribution",
    "write_tiny_llama",
    "write_tiny_moe",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"kt_core.testing.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
