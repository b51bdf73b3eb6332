"""What the commands exit with."""

from __future__ import annotations

from collections.abc import Iterable

from kt_core.errors import Problem, Severity

OK = 0
INPUT = 1
"""A rule file, a weight file or a plan is wrong."""
USAGE = 2
"""The command was called wrongly (KT7xx)."""
INSTALLATION = 3
"""A plugin or package is missing or broken (KT2xx, but for names that nobody has)."""
INTERNAL = 70
"""A fault in kt itself (KT790)."""
INTERRUPTED = 130
"""Stopped with Ctrl-C, as shells report it."""
BROKEN_PIPE = 141
"""The reader of the output went away, as shells report it."""


_NOBODYS_NAME = frozenset({"KT215", "KT219"})
"""KT2xx codes that are about what was written: no installation could bring that name."""


def exit_code(problems: Iterable[Problem]) -> int:
    """Return what a command with these problems exits with.

    Only errors count. When several kinds are present, a wrong call comes before wrong input, and
    wrong input before a wrong installation: that is the order in which a person would mend them.
    """
    codes = {problem.code for problem in problems if problem.severity is Severity.ERROR}
    if not codes:
        return OK
    if any(code[2] == "7" for code in codes):
        return USAGE
    missing = all(code[2] == "2" and code not in _NOBODYS_NAME for code in codes)
    return INSTALLATION if missing else INPUT
