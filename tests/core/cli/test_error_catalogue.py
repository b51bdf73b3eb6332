"""Every code that is raised is documented, and every documented code is raised somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kt_core
from kt_core.errors.catalogue import AREAS, CODE_PATTERN, codes, find

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted(
    [
        *Path(kt_core.__file__).parent.rglob("*.py"),
        *ROOT.glob("kt_ops_*/kt_ops_*/**/*.py"),  # their codes are documented in the core
    ]
)


def literal_codes():
    """Return ``{code: files}`` of all string literals that are a code or begin with one."""
    found = {}
    for path in SOURCES:
        if path.name.startswith("codes_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.Constant) else None
            code = re.match(r"KT\d{3}(?= |$)", value) if isinstance(value, str) else None
            if code is not None:
                found.setdefault(code[0], set()).add(path.name)
    return found


def test_every_code_in_the_sources_is_documented():
    missing = {code: files for code, files in literal_codes().items() if code not in codes()}
    assert not missing


def test_every_documented_code_is_in_the_sources():
    assert not set(codes()) - set(literal_codes())


@pytest.mark.parametrize("code", codes().values(), ids=lambda code: code.id)
def test_a_code_is_documented_in_full(code):
    assert CODE_PATTERN.fullmatch(code.id)
    assert code.id[2] in AREAS
    assert code.title
    assert not code.title.endswith(".")
    assert len(code.title) <= 72
    assert len(code.explanation) >= 40
    assert code.explanation.endswith(".")
    assert code.id in code.example


def test_codes_are_in_order_and_read_only():
    assert list(codes()) == sorted(codes())
    with pytest.raises(TypeError):
        codes()["KT999"] = None


@pytest.mark.parametrize("word", ["KT210", "kt210", "210", " Kt210 "])
def test_a_code_is_found_however_it_is_written(word):
    assert find(word).id == "KT210"


@pytest.mark.parametrize("word", ["KT21", "KT999", "", "KTKT210", "x"])
def test_what_is_no_code_is_not_found(word):
    assert find(word) is None
