"""Every family: a Hugging Face checkpoint gives the model back, whole or with operators."""

from __future__ import annotations

import json

import pytest
import torch

from kt_core.models.hf import config_from_folder, dynamic_cache, forward_logits
from kt_core.rules.model import Rule, RuleSet
from kt_core.runtime.apply import apply_plan
from kt_core.runtime.load import prepare

from .tiny_models import CASES

# Same float32 weights, same operations; only the order of sums may differ.
TOLERANCE = 1e-5

EXPERTS = RuleSet("<test>", (Rule(0, r"\.experts$", None, "kt_core.Experts", {}, False, False),))

# One case per model class; how a GGUF may be spelt does not matter here.
ONCE = tuple({case.model_type: case for case in CASES}.values())


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_a_checkpoint_gives_the_original(case, tmp_path):
    original = case.build()
    original.save_pretrained(tmp_path)
    ids = torch.arange(3, 20)[None]
    with torch.inference_mode():
        expected = original(ids).logits
    for rules in (RuleSet("<test>", ()), EXPERTS):
        prepared = prepare(tmp_path, rules=rules, dtype="float32", device="cpu")
        with prepared.source as source:
            apply_plan(prepared.model, prepared.plan, source, prepared.registry)
        found = forward_logits(prepared.model, ids, dynamic_cache(prepared.model), keep=0)
        limit = TOLERANCE * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=limit)


def test_kimi_k2_is_a_deepseek_v3_under_another_name(tmp_path):
    case = next(case for case in CASES if case.id == "kimi-k2")
    case.build().config.save_pretrained(tmp_path)
    plain = config_from_folder(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values |= {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.X"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = config_from_folder(tmp_path)
    place = {"_name_or_path": None}
    assert type(found) is type(plain)
    assert found.to_dict() | place == plain.to_dict() | place
