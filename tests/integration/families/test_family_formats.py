"""Every family in the formats it is published in, through its shipped rules: the original's logits."""

from __future__ import annotations

import pytest
import torch

from kt_core import Accepted
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.registry.registry import default_registry
from kt_core.runtime.apply import apply_plan
from kt_core.runtime.load import prepare

from .gguf_of_model import write_gguf
from .tiny_models import CASES

# Same float32 weights, same operations; only the order of sums may differ.
TOLERANCE = 1e-5

ONCE = tuple({case.model_type: case for case in CASES}.values())

# A power of two: halves hold it, and so do the scales of blocks of four bits.
STEP = 0.125


def variants():
    """Shipped rules that keep float32 as it is: torch's, and the CPU kernels' on plain files."""
    found = default_registry().kernel("kt_ops_cpu.experts")
    there = found is not None and isinstance(default_registry().probe(found.spec, "cpu"), Accepted)
    return ("torch", "cpu") if there else ("torch",)


def check(path, model, rules):
    ids = torch.randint(0, 96, (1, 19), generator=torch.Generator().manual_seed(8))
    with torch.inference_mode():
        expected = model(ids).logits
    prepared = prepare(path, rules=rules, dtype="float32", device="cpu")
    assert prepared.rules.path.endswith(f"{rules}.yaml")
    with prepared.source as source:
        apply_plan(prepared.model, prepared.plan, source, prepared.registry)
    cache = dynamic_cache(prepared.model)
    found = [
        forward_logits(prepared.model, ids[:, start:stop], cache, keep=0)
        for start, stop in ((0, 17), (17, 18), (18, 19))
    ]
    limit = TOLERANCE * float(expected.abs().max())
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=0, atol=limit)
    return prepared.plan


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_safetensors(case, tmp_path):
    model = case.build()
    model.save_pretrained(tmp_path)
    for rules in variants():
        plan = check(tmp_path, model, rules)
        assert plan.weights_format == "safetensors"


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_halves(case, tmp_path):
    model = case.build(exact=STEP)
    file = tmp_path / "model.gguf"
    write_gguf(model, file, case.gguf, "F16", case.style)
    plan = check(file, model, "torch")
    assert any("F16" in module.types for module in plan.modules)


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_blocks_of_four_bits(case, tmp_path):
    wide = case.wide()
    model = wide.build(exact=STEP)
    file = tmp_path / "model.gguf"
    write_gguf(model, file, case.gguf, "Q4_K", case.style)
    plan = check(file, model, "torch")
    packed = {module.class_name for module in plan.modules if "Q4_K" in module.types}
    assert "Linear" in packed
    assert any("Experts" in name for name in packed) == any(m.experts for m in plan.modules)
