"""What commands write: escapes, tables, sizes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from kt_core.cli import exit_codes
from kt_core.cli.output import printable, table, write, write_json, write_problems
from kt_core.errors import Problem, Severity
from kt_core.units import human_bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcödé ✓", "plain ünïcödé ✓"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("over\rwritten", "over\\rwritten"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("nul\0", "nul\\x00"),
    ],
)
def test_nothing_steers_the_terminal(text, shown):
    assert printable(text) == shown


def test_problems_are_written_escaped():
    stream = io.StringIO()
    write_problems([Problem("KT401", "bad key \x1b[2J", facts=("at 7",), help="look")], stream)
    assert stream.getvalue() == "KT401 bad key \\x1b[2J\n  at 7\n  help: look\n"


def test_write_goes_to_standard_output(capsys):
    write("hello")
    assert capsys.readouterr().out == "hello\n"


def test_json_is_json_whatever_is_in_it(capsys):
    write_json({"name": "\x1b[31m", "text": "é"})
    assert json.loads(capsys.readouterr().out) == {"name": "\x1b[31m", "text": "é"}


def test_json_has_no_nan():
    with pytest.raises(ValueError):
        write_json(float("nan"))


def test_a_table_is_aligned_and_not_padded_at_the_end():
    assert table([("a", "bb", "c"), ("aaa", "b", "")], indent=1) == " a    bb  c\n aaa  b"
    assert table([]) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (1 << 41, "2048.0 GiB"),
    ],
)
def test_sizes(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], exit_codes.OK),
        (["KT116"], exit_codes.INPUT),
        (["KT210", "KT214"], exit_codes.INSTALLATION),
        (["KT215"], exit_codes.INPUT),
        (["KT219"], exit_codes.INPUT),
        (["KT210", "KT219"], exit_codes.INPUT),
        (["KT210", "KT116"], exit_codes.INPUT),
        (["KT210", "KT700"], exit_codes.USAGE),
    ],
)
def test_exit_codes_follow_what_a_person_would_mend_first(codes, expected):
    problems = [Problem(code, "", severity=Severity.ERROR) for code in codes]
    noise = [Problem("KT700", "", severity=Severity.WARNING)]
    assert exit_codes.exit_code([*problems, *noise]) == expected


def test_what_stands_on_stdout_comes_before_what_follows_on_stderr():
    """Also where both are one pipe, in which Python buffers only the first."""
    code = (
        "import sys; from kt_core.cli.output import write; write('one'); write('two', sys.stderr)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["one", "two"]
