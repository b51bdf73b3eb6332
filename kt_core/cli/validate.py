"""Check rule files completely: every problem of every file in one run.

Give files, folders (searched for .yaml and .yml), or - for standard input.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kt_core.errors import Location, Problem, Severity

_EPILOG = """\
exit codes: 0 no errors, 1 a file is wrong, 2 wrong usage, 3 an operator is missing or broken here

Warnings and notes do not change the exit code; --strict turns warnings into errors.
"kt explain KT116" says more about a code. KT_PLUGINS limits which plugins are asked.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("files", nargs="*", metavar="FILE", help="rule file, folder, or -")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.add_argument(
        "--format",
        choices=("text", "json", "sarif", "github"),
        default="text",
        help="text (default); json; sarif for code scanning; github for workflow annotations",
    )


def run(args: argparse.Namespace) -> int:
    """Check, report, and return the exit code."""
    if not args.files:
        from kt_core.errors import UsageError

        raise UsageError.of(
            "KT700",
            "no rule file is named",
            help="kt-validate FILE, or kt-validate - to read a pipe",
        )
    return _check(args.files, args.format, strict=args.strict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kt-validate``."""
    from kt_core.cli.main import standalone

    return standalone("validate", argv)


def _check(files: Sequence[str], style: str, *, strict: bool) -> int:
    from kt_core.cli import exit_codes
    from kt_core.cli.reports import report
    from kt_core.registry.registry import default_registry
    from kt_core.rules.load import check_file

    registry = default_registry()
    checked: list[str] = []
    problems: list[Problem] = []
    for entry in _expand(files):
        if isinstance(entry, Problem):
            problems.append(entry)
            continue
        checked.append(entry)
        problems.extend(check_file(entry, registry).problems)
    if strict:
        problems = [
            replace(p, severity=Severity.ERROR) if p.severity is Severity.WARNING else p
            for p in problems
        ]
    report(style, problems, checked)
    return exit_codes.exit_code(problems)


def _expand(names: Sequence[str]) -> Iterator[str | Problem]:
    """Yield every file once, folders by the rule files in them."""
    from kt_core.rules.load import STDIN

    seen: set[str] = set()
    for name in names:
        files: list[str] | None = None
        if name != STDIN and os.path.isdir(name):
            files = _rule_files(name)
            if not files:
                yield Problem(
                    "KT102",
                    "there is no .yaml or .yml file in this folder",
                    Location(name),
                    help="name a rule file, or the folder that has some",
                )
        for file in (name,) if files is None else files:
            key = file if file == STDIN else os.path.realpath(file)
            if key not in seen:
                seen.add(key)
                yield file


def _rule_files(folder: str) -> list[str]:
    from kt_core.rules.load import SUFFIXES

    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(
            os.path.join(parent, name)
            for name in sorted(names)
            if name.endswith(SUFFIXES) and not name.startswith(".")
        )
    return found
