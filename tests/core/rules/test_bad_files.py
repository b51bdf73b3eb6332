"""A table of wrong rule files: every finding, with code, line and column, for both YAML parsers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kt_core.errors import Severity
from kt_core.errors.catalogue import codes
from kt_core.rules import check_text

TABLE = Path(__file__).parent / "data" / "bad_files.toml"
CASES = tomllib.loads(TABLE.read_text("utf-8"))["case"]


def content(case) -> bytes:
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    if "repeat" in case:
        text, times = case["repeat"]
        return (text * times).encode()
    return case["text"].encode()


def brief(problem) -> str:
    where = problem.location
    return f"{problem.code} {where.line}:{where.column}" if where.line else problem.code


@pytest.mark.parametrize("libyaml", [True, False], ids=["libyaml", "python"])
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_finding(case, libyaml, registry):
    checked = check_text(content(case), "rules.yaml", registry, libyaml=libyaml)
    printed = "\n".join(problem.render() for problem in checked.problems)
    assert [brief(problem) for problem in checked.problems] == case["find"], printed
    for part in case.get("says", ()):
        assert part in printed
    failed = any(problem.severity is Severity.ERROR for problem in checked.problems)
    assert (checked.ruleset is None) is failed
    assert printed.isprintable() or "\n" in printed
    assert all(line.isprintable() for line in printed.split("\n"))


def test_the_table_is_as_long_as_promised_and_each_case_has_its_own_id():
    ids = [case["id"] for case in CASES]
    assert len(ids) == len(set(ids))
    assert len(ids) >= 100
    assert all(case["find"] for case in CASES)


def test_every_documented_code_of_a_rule_file_has_a_case_and_every_finding_is_documented():
    shown = {finding.split()[0] for case in CASES for finding in case["find"]}
    # From KT160 on, codes are about choosing and matching, which have tests of their own.
    documented = {code for code in codes() if "KT100" <= code < "KT160"}
    assert documented - shown == {"KT100", "KT101", "KT102", "KT142", "KT143"}
    assert {code for code in shown if code.startswith("KT1")} <= documented
