"""Exceptions. Each carries the problems it stands for, so that a caller can print or serialise them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from kt_core.errors.problem import Location, Problem


class KtError(Exception):
    """Base of every error kt raises on purpose. ``problems`` holds at least one coded problem."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__("\n".join(problem.render() for problem in self.problems))

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        *,
        facts: Iterable[str] = (),
        help: str | None = None,
        location: Location | None = None,
    ) -> Self:
        """Build the error for a single problem."""
        return cls(Problem(code, message, location, tuple(facts), help))

    @property
    def code(self) -> str:
        """The code of the first problem."""
        return self.problems[0].code

    def __reduce__(self) -> tuple[type[KtError], tuple[tuple[Problem, ...]]]:
        # Exception would pickle its rendered text; the problems are what a worker process must return.
        return type(self), (self.problems,)


class RuleError(KtError):
    """A rule file is wrong (KT1xx)."""


class PluginError(KtError):
    """A plugin is missing, broken or cannot run here (KT2xx)."""


class PlanError(KtError):
    """Rules, model and machine do not fit together (KT3xx)."""


class WeightsError(KtError):
    """A weight file is missing, damaged or not supported (KT4xx)."""


class KernelError(KtError):
    """A kernel was given something it cannot compute on (KT5xx)."""


class UsageError(KtError):
    """A command or a function was called wrongly (KT7xx; commands exit with 2)."""
