"""Coded problems and the exceptions that carry them."""

from kt_core.errors.exceptions import (
    KernelError,
    KtError,
    PlanError,
    PluginError,
    RuleError,
    UsageError,
    WeightsError,
)
from kt_core.errors.problem import Location, Problem, Severity

__all__ = [
    "KernelError",
    "KtError",
    "Location",
    "PlanError",
    "PluginError",
    "Problem",
    "RuleError",
    "Severity",
    "UsageError",
    "WeightsError",
]
