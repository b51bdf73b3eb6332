"""The page about KTransformers' own rule files, and the script that makes it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from kt_core.errors.catalogue import codes

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "upstream-rules.md"
FOLDER = os.environ.get("KT_UPSTREAM_RULES")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location(
        "upstream_rules", ROOT / "tools/upstream_rules.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["upstream_rules"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["upstream_rules"]


SAME = r"""
- match:
    class: ktransformers.models.modeling_deepseek.DeepseekV2MoE
  replace:
    class: ktransformers.operators.experts.KDeepseekV2MoE
    kwargs: {generate_device: "cuda:1", prefill_device: "cuda:1"}
- match: {name: "^model\\.layers\\.(1[0-9]|2[0-9])\\.(?!self_attn)", class: torch.nn.Linear}
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs: {generate_device: cpu, prefill_device: cpu, generate_op: KLinearTorch}
- match: {name: "^model.embed_tokens"}
  replace: {class: default, kwargs: {generate_device: cpu, prefill_device: cpu}}
"""


def planned(tool, folder, name, text):
    (folder / name).write_text(text)
    return tool.outcome(folder, name)


def test_a_file_that_gives_the_same_plan(tool, tmp_path):
    found = planned(tool, tmp_path, "DeepSeek-V2-Lite-mine.yaml", SAME)
    assert found.gives == "the same plan", found.problems
    assert found.placed > 300
    devices = {m.path: tool._device(m) for m in found.plan.modules}
    assert devices["model.layers.12.mlp.shared_experts.up_proj"] == "cpu"
    assert devices["model.layers.2.mlp.shared_experts.up_proj"] == "cuda:0"
    assert devices["model.embed_tokens"] == "cpu"


def test_a_file_that_places_otherwise_is_told_from_it(tool, tmp_path):
    text = (
        '- match: {name: "^model\\\\.layers\\\\..*\\\\.block_sparse_moe\\\\.experts$"}\n'
        "  replace:\n    class: ktransformers.operators.experts.KTransformersExperts\n"
        "    kwargs: {generate_device: cpu, generate_op: KExpertsTorch}\n"
        "- match: {class: ktransformers.models.modeling_mixtral.MixtralRMSNorm}\n"
        "  replace: {class: default}\n"
    )
    found = planned(tool, tmp_path, "Mixtral-mine.yaml", text)
    assert found.gives == "a plan that differs"
    assert {p.code for p in found.problems} >= {"KT144", "KT330"}
    assert found.elsewhere[0] == ("model.layers.0.mlp.experts", "cuda:0", "cpu")
    migrated = text.replace("block_sparse_moe", "mlp")
    (tmp_path / "Mixtral-new.yaml").write_text(migrated)
    plan = tool.outcome(tmp_path, "Mixtral-new.yaml").plan
    assert tool._device(plan.module("model.layers.0.mlp.experts")) == "cpu"


def test_a_file_that_cannot_run_gives_its_findings_once_each(tool, tmp_path):
    text = SAME.replace("KLinearTorch", "KLinearFP8")
    found = planned(tool, tmp_path, "DeepSeek-V2-mine.yaml", text)
    assert found.gives == "findings"
    assert found.plan is None
    page = tool.page([found])
    assert "KT219" in page
    assert "(line 10)" in page


def test_the_page_has_every_file_and_only_codes_that_exist():
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 38
    named = set(re.findall(r"\bKT\d{3}\b", text))
    assert named <= set(codes())
    for row in rows:
        gives = row.split(" | ")[2]
        assert gives.startswith(("the same plan", "findings", "a plan that differs"))
        if not gives.startswith("the same plan"):
            assert re.search(r"KT\d{3}", row), row


@pytest.mark.skipif(FOLDER is None, reason="KT_UPSTREAM_RULES does not name KTransformers' rules")
def test_the_page_is_what_the_script_makes(tool, tmp_path):
    target = tmp_path / "page.md"
    assert tool.main([str(FOLDER), str(target)]) == 0
    assert target.read_text() == PAGE.read_text(), "python tools/upstream_rules.py FOLDER docs/…"
