"""One requirement of a contract, and how it is judged. Shared by kernels and operators."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from kt_core.registry.specs import KernelSpec, OperatorSpec, Rejected

if TYPE_CHECKING:
    import torch

    from kt_core.registry.registry import Registry

NO_SKIP_VARIABLE = "KT_TEST_NO_SKIP"
"""Set to 1 where the hardware must be there: what would be skipped then fails."""


@dataclass(frozen=True)
class Case:
    """One requirement on one kernel or operator; ``str(case)`` is its test id."""

    kernel: str
    name: str
    check: Callable[[], None] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def run(self) -> None:
        """Raise ``AssertionError`` if it is not satisfied."""
        self.check()


def run_all(cases: Iterable[Case]) -> None:
    """Run every case; one ``AssertionError`` names all that failed, and why."""
    failures = []
    subject, count = "", 0
    for case in cases:
        subject, count = case.kernel, count + 1
        try:
            case.run()
        except (KeyboardInterrupt, pytest.skip.Exception):
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all of them at once
            failures.append(f"  {case.name}: {_say(error)}")
    if failures:
        head = f"{subject} fails {len(failures)} of {count} cases of its contract:"
        raise AssertionError("\n".join((head, *failures)))


def require(condition: bool, message: str) -> None:
    """Raise ``AssertionError`` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(message)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """``norm(actual - expected) / norm(expected)`` in float64."""
    actual, expected = actual.double().cpu(), expected.double().cpu()
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-30))


def skip_unless_accepted(spec: OperatorSpec | KernelSpec, device: str, registry: Registry) -> None:
    """Skip the test where the probe rejects ``spec``, with its reasons; see ``KT_TEST_NO_SKIP``."""
    result = registry.probe(spec, device)
    if not isinstance(result, Rejected):
        return
    reason = f"{spec.name} cannot run on {device}: {'; '.join(result.reasons)}"
    if os.environ.get(NO_SKIP_VARIABLE, "") not in ("", "0"):
        pytest.fail(f"{reason} ({NO_SKIP_VARIABLE} is set)", pytrace=False)
    pytest.skip(reason)


def _say(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError) and text:
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({frame.filename}:{frame.lineno})"
