"""What PyYAML's parsers say about broken YAML, in words of our own.

libyaml and PyYAML's Python parser word the same fault differently and sometimes point one column
apart. Both are brought to one message and one place, so that a user's report does not depend on how
PyYAML was built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kt_core.rules.problems import Problems
from kt_core.rules.text import show, yaml_string

if TYPE_CHECKING:
    import yaml

_QUOTE = "put the value in quotes"
_INDENT = "indent this line like its neighbours, two spaces a level"

# part of the parser's own words -> (our message, help)
_FAULTS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed",
        'a ":" is not allowed here',
        "check the indentation of this line and the one above, or put the value in quotes",
    ),
    ("could not find expected ':'", 'a ":" is missing after the key', _INDENT),
    ("cannot start any token", "a value cannot begin with {char}", _QUOTE),
    ("found unexpected end of stream", "a quoted text is never closed", "add the closing quote"),
    (
        "did not find expected node content",
        "the file ends, or a bracket closes, where a value is needed",
        None,
    ),
    (
        "expected the node content",
        "the file ends, or a bracket closes, where a value is needed",
        None,
    ),
    ("',' or ']'", 'a "," or "]" is missing in this list', None),
    ("',' or '}'", 'a "," or "}" is missing in this mapping', None),
    ("did not find expected key", "this line does not fit the indentation above it", _INDENT),
    (
        "did not find expected '-'",
        "this line does not fit the list above it",
        'begin each rule with "- ", in the same column',
    ),
    (
        "sequence entries are not allowed",
        'a list item ("- ") is not allowed here',
        _INDENT,
    ),
    ("expected <block end>", "this line does not fit the indentation above it", _INDENT),
    (
        "did not find expected <document start>",
        "there is text after the end of the rules",
        _INDENT,
    ),
    ("expected '<document start>'", "there is text after the end of the rules", _INDENT),
)


class SyntaxFault(Exception):  # noqa: N818 - it is a finding, not an error of ours
    """Something that only one of the two parsers refuses, found in what the other made of it."""

    def __init__(self, message: str, line: int, column: int, source: str, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = _Place(line, column)
        self.source = source
        self.help = help

    def report(self, problems: Problems) -> None:
        """Record it."""
        problems.drop_from(self.place.line)
        facts = [f"line: {show(self.source.strip())}"]
        problems.add("KT105", self.message, self.place, facts=facts, help=self.help)


_NO_SPACE = 'a space is missing after ":"'
_QUESTION_MARK = 'a "?" inside brackets or braces needs quotes'


def check_plain_in_flow(text: str, event: Any) -> None:
    """Refuse plain scalars between brackets that the two parsers read differently.

    ``a:{`` is a key to one and an error to the other; ``(?!b)`` is text to one and the beginning of a
    key to the other.

    Raises:
        SyntaxFault: the scalar of ``event`` is such a one.
    """
    start, end = event.start_mark.index, event.end_mark.index
    if text[end : end + 1] == ":" and text[end + 1 : end + 2] in tuple(",[]{}?"):
        raise _fault(_NO_SPACE, text, end, "write a space after the colon")
    found = text.find("?", start + 1, end)
    if found >= 0:
        raise _fault(_QUESTION_MARK, text, found, _QUOTE)


def _fault(message: str, text: str, position: int, help: str) -> SyntaxFault:
    before = text[:position]
    line = before.count("\n") + 1
    source = text.split("\n", line)[line - 1]
    return SyntaxFault(message, line, position - before.rfind("\n"), source, help)


def report(error: yaml.MarkedYAMLError, text: str, problems: Problems) -> None:
    """Record the syntax error ``error`` of the parser, which read ``text``."""
    words = error.problem or ""
    mark = error.problem_mark or error.context_mark
    opened = error.context_mark
    if mark is not None and opened is not None and not text[mark.index :].strip("\r\n .-"):
        # What was opened and never closed is of more use than the end of the file.
        mark = opened
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.splitlines()
    source = lines[line - 1] if line <= len(lines) else ""
    problems.drop_from(line)
    if "unknown escape" in words:
        _escape(source, line, column, problems)
        return
    message, help_ = "this is not valid YAML", None
    for part, ours, way_out in _FAULTS:
        if part in words:
            message, help_ = ours, way_out
            break
    if "expected <block end>" in words and "sequence" in (error.context or error.problem or ""):
        message = "this line does not fit the list above it"
        help_ = 'begin each rule with "- ", in the same column'
    if "block collection" in (error.context or "") and "while parsing a block collection" in (
        error.context or ""
    ):
        message = "this line does not fit the list above it"
        help_ = 'begin each rule with "- ", in the same column'
    char = source[column - 1 : column]
    if char == "?" and source[column - 2 : column - 1] == ":":
        message, help_, column = _NO_SPACE, "write a space after the colon", column - 1
    elif char == "?" and "',' or" in words:
        message, help_ = _QUESTION_MARK, _QUOTE
    elif "found unexpected ':'" in words:
        message, help_ = _NO_SPACE, "write a space after the colon"
    facts = [f"line: {show(source.strip())}"] if source.strip() else []
    problems.add(
        "KT105",
        message.replace("{char}", show(char)),
        _Place(line, column),
        facts=facts,
        help=help_,
    )


def _escape(source: str, line: int, column: int, problems: Problems) -> None:
    r"""Report ``"\."`` and the like: the commonest slip with patterns in double quotes."""
    # The Python parser points behind the backslash, libyaml at it.
    if source[column - 1 : column] != "\\" and source[column - 2 : column - 1] == "\\":
        column -= 1
    pair = source[column - 1 : column + 1]
    start = source.rfind('"', 0, column - 1)
    end = source.find('"', column + 1)
    help_ = "write the pattern in single quotes, or each backslash twice"
    if 0 <= start < end:
        inside = source[start + 1 : end]
        help_ = source[:start].strip().removeprefix("- ") + " " + yaml_string(inside)
    problems.add(
        "KT105",
        f"{show(pair)[1:-1].replace(chr(92) * 2, chr(92))} is not an escape in double quotes",
        _Place(line, column),
        facts=[
            "in double quotes a backslash must be doubled; in single quotes it stands for itself"
        ],
        help=help_,
    )


class _Place:
    def __init__(self, line: int, column: int) -> None:
        self.line = line
        self.column = column
