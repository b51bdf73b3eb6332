"""The operator satisfies kt's contract, equals its reference, and answers inside a model."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from kt_core.testing import attention_inputs, check_model, check_operator, relative_error

# float32 sums in another order than the original's.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def original(kt_tiny_llama):
    """The attention module of a tiny Llama, with its weights."""
    return kt_tiny_llama.reference().model.layers[0].self_attn


@pytest.mark.parametrize("rows", [256, 3])
def test_contract(original, rows):
    check_operator(
        "kt_plugin_template.Attention",
        original=original,
        inputs=partial(attention_inputs, original.config),
        config=original.config,
        kwargs={"block_rows": rows},
        tolerance=TOLERANCE,
    )


def test_equals_the_reference():
    from kt_plugin_template import products, reference

    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, h, 5, 8, generator=generator) for h in (4, 2, 2))
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    y = products.attend(query, key, value, seen, 0.3)
    assert relative_error(y, reference.attend(query, key, value, seen, 0.3)) < TOLERANCE


def test_a_model_answers_as_before(kt_tiny_llama):
    uses = ["kt_plugin_template.Attention"]
    check_model(kt_tiny_llama(), "kt_plugin_template", uses=uses, tolerance=1e-4)
