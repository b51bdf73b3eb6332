"""Every hostile file ends in the one documented error, naming file, field and byte offset."""

from __future__ import annotations

import logging
import os
import re

import pytest

from kt_core.errors import WeightsError
from kt_core.weights import open_weights

from .gguf_cases import ACCEPTED, BASE, CASES


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "pread"])
def test_is_refused_with_its_code(case, mmap, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(case.data)
    before = open_files()
    with pytest.raises(WeightsError) as caught:
        open_weights(path, mmap=mmap)
    assert open_files() == before
    (problem,) = caught.value.problems
    rendered = problem.render()
    assert problem.code.startswith(case.code), rendered
    assert problem.location is not None
    assert problem.location.path == str(path)
    facts = dict(fact.split(": ", 1) for fact in problem.facts if ": " in fact)
    if case.code != "KT425":
        assert case.field in facts.get("field", "")
    assert 0 <= int(facts["byte offset"]) <= len(case.data)
    assert case.says in rendered
    assert rendered.isascii() or "…" in rendered
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f]*", rendered)


def test_ids_are_unique():
    ids = [case.id for case in CASES]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("id", ACCEPTED)
def test_is_accepted(id, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(ACCEPTED[id])
    with open_weights(path, strict=True) as source:
        assert source.problems == ()
        for name in source.tensors:
            source.tensor(name).dequantize()
        dict(source.metadata)


def test_g35_trailing_bytes_are_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("kt_core"), "propagate", True)
    path = tmp_path / "model.gguf"
    path.write_bytes(BASE + bytes(22) + b"PK\x03\x04" + bytes(296))
    with open_weights(path) as source:
        (problem,) = source.problems
    assert problem.code == "KT421"
    assert problem.severity == "warning"
    assert "300 bytes follow" in problem.message
    assert "KT421" in caplog.text
    with pytest.raises(WeightsError, match="KT421"):
        open_weights(path, strict=True)
