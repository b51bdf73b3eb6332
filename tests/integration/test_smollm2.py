"""The real model: loaded through rules it equals transformers' own load of the same file."""

from __future__ import annotations

import os

import pytest
import torch

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits

pytestmark = pytest.mark.model

# The same float32 operations in the same order: what is left is the order of sums inside matmul.
TOLERANCE = 1e-4

QUESTIONS = (
    "What is the capital of France?",
    "Tell me three facts about the moon, with numbers like 384400 km.",
)


@pytest.fixture(scope="module")
def reference(smollm2):
    from transformers import AutoModelForCausalLM

    folder, file = os.path.split(smollm2)
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def loaded(smollm2, tmp_path_factory):
    rules = tmp_path_factory.mktemp("rules") / "torch.yaml"
    rules.write_text(
        "- match: {class: torch.nn.Linear}\n"
        "  replace:\n"
        "    class: kt_core.Linear\n"
        "    kwargs: {generate_op: kt_core.torch_linear, prefill_op: kt_core.torch_linear}\n"
    )
    return load(smollm2, rules=rules, dtype="float32", device="cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("question", QUESTIONS)
def test_logits_and_greedy_tokens_equal_transformers(loaded, reference, question):
    ids = loaded.prompt(question)
    with torch.inference_mode():
        expected = reference(ids).logits
        continued = reference.generate(ids, max_new_tokens=32, do_sample=False)
    actual = forward_logits(loaded.model, ids, dynamic_cache(loaded.model), keep=0)
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE * scale)
    assert loaded.generate(ids, 32).tokens == continued[0, ids.shape[1] :].tolist()


def test_the_answer_is_right(smollm2):
    answer = load(smollm2, device="cpu").generate("What is the capital of France?", 64)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


TEXTS = (
    "Hello, world!",
    "The year 1984 and 3.14159",
    "  leading and   inner spaces ",
    "tabs\tand\nnewlines\r\n",
    "naïve café — “quotes”",
    "日本語のテキスト",
    "Привет мир",
    "emoji 😀👩‍👩‍👧",
    "def f(x):\n    return x**2",
    "don't we'll I'VE",
    "<|im_start|>user",
    "a" * 50,
    "",
    "x",
    "...!!!???",
    "http://example.org/?a=b&c=d",
    "ALL CAPS AND lower",
    "CamelCaseAndsnake_case",
    "1,000,000.00",
    "مرحبا بالعالم",
)


@pytest.mark.filterwarnings("ignore")
def test_the_tokenizer_agrees_with_transformers_on_text_without_digits(loaded, smollm2):
    """transformers' conversion forgets that SmolLM2 splits digits, so those texts are left out."""
    from transformers import AutoTokenizer

    folder, file = os.path.split(smollm2)
    theirs = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    for text in TEXTS:
        ids = loaded.tokenizer(text).input_ids
        assert loaded.tokenizer.decode(ids) == text
        if not any(character.isdigit() for character in text):
            assert ids == theirs(text).input_ids


def test_digits_are_split_one_by_one(loaded):
    tokens = loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer("in 1984").input_ids)
    assert tokens[-4:] == ["1", "9", "8", "4"]


def test_peak_memory_is_close_to_the_plan(smollm2):
    """A child loads the model and reports how much its memory grew over a bare import."""
    import subprocess
    import sys

    program = (
        "import resource, sys; from kt_core.runtime.load import load\n"
        "import transformers.models.llama.modeling_llama\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        "before = peak(); loaded = load(sys.argv[1], device='cpu')\n"
        "print(peak() - before, sum(loaded.plan.resident.values()), loaded.plan.stored)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, smollm2], capture_output=True, text=True, check=True
    )
    grown, planned, stored = map(int, run.stdout.split())
    # Mapped file pages count as resident until the system wants them back; beyond that, one tensor
    # in conversion and the tokenizer.
    assert grown < planned + stored + (160 << 20)
