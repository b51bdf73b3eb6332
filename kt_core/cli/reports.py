"""The forms in which findings about files are written: text, JSON, SARIF, GitHub annotations."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kt_core.cli.output import printable, write, write_json
from kt_core.errors import Problem, Severity

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def report(style: str, problems: Sequence[Problem], files: Sequence[str]) -> None:
    """Write ``problems`` of ``files`` to standard output; ``style`` is a key of ``STYLES``."""
    STYLES[style](problems, files)


def _text(problems: Sequence[Problem], files: Sequence[str]) -> None:
    for problem in problems:
        write(problem.render())
    if problems:
        write(_summary(problems, files), sys.stderr)


def _summary(problems: Iterable[Problem], files: Sequence[str]) -> str:
    counts = _counts(problems)
    words = [
        f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count
    ]
    return f"{', '.join(words) or 'no problems'} in {_number(len(files), 'file')}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _counts(problems: Iterable[Problem]) -> dict[str, int]:
    counts = Counter(problem.severity for problem in problems)
    return {severity.value: counts[severity] for severity in Severity}


def _json(problems: Sequence[Problem], files: Sequence[str]) -> None:
    write_json(
        {
            "version": 1,
            "files": list(files),
            "summary": _counts(problems),
            "problems": [dict(problem.to_json()) for problem in problems],
        }
    )


# --- SARIF ----------------------------------------------------------------------------------------

_SARIF_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def _sarif(problems: Sequence[Problem], files: Sequence[str]) -> None:
    from kt_core import __version__

    codes = sorted({problem.code for problem in problems})
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "kt-validate",
                "version": __version__,
                "rules": [_sarif_rule(code) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": {"uri": _uri(file)}} for file in files],
        "results": [_sarif_result(problem, codes.index(problem.code)) for problem in problems],
    }
    write_json({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _sarif_rule(code: str) -> Mapping[str, Any]:
    from kt_core.errors.catalogue import find

    rule: dict[str, Any] = {"id": code}
    known = find(code)
    if known is not None:
        rule |= {
            "shortDescription": {"text": known.title},
            "fullDescription": {"text": known.explanation},
            "help": {"text": known.explanation},
        }
    return rule


def _sarif_result(problem: Problem, index: int) -> Mapping[str, Any]:
    result: dict[str, Any] = {
        "ruleId": problem.code,
        "ruleIndex": index,
        "level": _SARIF_LEVEL[problem.severity],
        "message": {"text": _whole_message(problem)},
    }
    where = problem.location
    if where is not None:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(where.path)}}
        if where.line:
            place["region"] = {"startLine": where.line, "startColumn": where.column}
        result["locations"] = [{"physicalLocation": place}]
    return result


def _whole_message(problem: Problem) -> str:
    help_ = (f"help: {problem.help}",) if problem.help else ()
    return "\n".join((problem.message, *problem.facts, *help_))


def _uri(path: str) -> str:
    """Return a relative or absolute path as a URI reference."""
    from pathlib import PurePath
    from urllib.parse import quote

    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())


# --- GitHub ---------------------------------------------------------------------------------------

_GITHUB_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def _github(problems: Sequence[Problem], files: Sequence[str]) -> None:
    for problem in problems:
        fields = {"title": problem.code}
        where = problem.location
        if where is not None:
            fields = {"file": where.path, **fields}
            if where.line:
                fields |= {"line": str(where.line), "col": str(where.column)}
        words = ",".join(f"{key}={_escaped(value, more=':,')}" for key, value in fields.items())
        level = _GITHUB_LEVEL[problem.severity]
        write(f"::{level} {words}::{_escaped(printable(_whole_message(problem)))}")


def _escaped(text: str, *, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" or c in more else c for c in text)


STYLES: Mapping[str, Callable[[Sequence[Problem], Sequence[str]], None]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _github,
}
