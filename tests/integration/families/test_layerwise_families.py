"""Layer-wise prefill in chunks gives every family's own logits: masks, windows and states agree."""

from __future__ import annotations

import pytest
import torch

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators.decoder import prompt_chunks
from kt_core.rules.model import Rule, RuleSet

from .gguf_of_model import write_gguf
from .tiny_models import CASES

TOLERANCE = 2e-5
LENGTH, CHUNK = 31, 9

KWARGS = {"per_layer_prefill_intput_threshold": 10}
RULES = RuleSet(
    "<test>",
    (
        Rule(0, r"^model$", None, "kt_core.DecoderModel", KWARGS, True, False),
        Rule(1, r"\.experts$", None, "kt_core.Experts", {}, False, False),
    ),
)
LATENT = Rule(2, r"\.self_attn$", None, "kt_core.MlaAttention", {}, True, False)

ONCE = tuple({case.model_type: case for case in CASES}.values())


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_logits_equal_the_original(case, tmp_path):
    model = case.build()
    file = tmp_path / "model.gguf"
    write_gguf(model, file, case.gguf, "F32", case.style)
    rules = RuleSet("<test>", (*RULES.rules, LATENT)) if case.gguf == "deepseek2" else RULES
    loaded = load(file, rules=rules, dtype="float32", device="cpu").model
    ids = torch.randint(0, 96, (1, LENGTH), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        expected = model(ids).logits
    limit = TOLERANCE * float(expected.abs().max())
    attentions = [layer.self_attn for layer in loaded.model.layers if hasattr(layer, "self_attn")]
    calls = []
    for attention in attentions:
        attention.register_forward_hook(lambda *_: calls.append(1))
    cache = dynamic_cache(loaded)
    with prompt_chunks(loaded, LENGTH - 1, CHUNK) as size:
        assert size == LENGTH - 1
        found = forward_logits(loaded, ids[:, :-1], cache, keep=0)
    torch.testing.assert_close(found, expected[:, :-1], rtol=0, atol=limit)
    assert len(calls) == 4 * len(attentions)
    step = forward_logits(loaded, ids[:, -1:], cache)
    torch.testing.assert_close(step, expected[:, -1:], rtol=0, atol=limit)
