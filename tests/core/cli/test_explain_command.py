"""``kt explain``."""

from __future__ import annotations

import json

import pytest

from kt_core.cli import exit_codes, main
from kt_core.errors.catalogue import codes


@pytest.mark.parametrize("word", ["KT210", "kt210", "210"])
def test_one_code_is_explained(capsys, word):
    assert main.main(["explain", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith("KT210: A distribution of kt is needed and not installed\n\n")
    assert "\n    rules/deepseek_v3/amd.yaml:13:12: KT210 " in out
    prose = out.split("\n\n")[1]
    assert max(map(len, prose.splitlines())) <= 88


def test_all_codes_are_listed_by_area(capsys):
    assert main.main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  KT")]
    assert listed == list(codes())
    assert "KT2xx: plugins and the installation" in lines


@pytest.mark.parametrize(("word", "near"), [("KT21", "KT210"), ("KT22", "KT220")])
def test_an_unknown_code_suggests_one(capsys, word, near):
    assert main.main(["explain", word]) == exit_codes.USAGE
    err = capsys.readouterr().err
    assert err.startswith(f'KT702 "{word}" is not an error code of kt\n')
    assert f"did you mean {near}?" in err


def test_json(capsys):
    assert main.main(["explain", "KT210", "KT214", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in found] == ["KT210", "KT214"]
    assert set(found[0]) == {"id", "title", "explanation", "example"}
