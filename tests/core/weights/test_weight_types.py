"""The copied constants equal their originals, and every code raised is explained."""

from __future__ import annotations

import re
from pathlib import Path

import gguf

import kt_core.weights
from kt_core.errors.codes_weights import CODES
from kt_core.weights import LAYOUTS, PLAIN, QuantType
from kt_core.weights.types import BY_GGML_NUMBER


def test_layouts_equal_gguf():
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        layout = LAYOUTS[QuantType(kind.name)]
        assert (layout.block_size, layout.block_bytes) == (block_size, block_bytes)
        assert layout.ggml == kind.value
        assert BY_GGML_NUMBER[kind.value] == kind.name
    assert {kind.value for kind in gguf.GGMLQuantizationType} <= set(BY_GGML_NUMBER)


def test_every_type_has_a_layout():
    assert set(LAYOUTS) == set(QuantType)
    assert all(LAYOUTS[kind].block_size == 1 for kind in PLAIN)


def test_codes_are_unique_and_in_order():
    ids = [code.id for code in CODES]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch(r"KT4[0-5]\d", code) for code in ids)
    for code in CODES:
        assert code.title
        assert code.explanation.endswith(".")
        assert code.example


def test_every_code_raised_here_is_explained():
    root = Path(kt_core.weights.__file__).parent
    files = [*root.glob("*.py"), root.parent / "cli" / "inspect.py"]
    raised = {code for file in files for code in re.findall(r'"(KT\d{3})"', file.read_text())}
    explained = {code.id for code in CODES}
    assert len(raised) > 35
    assert explained == raised
