"""A first rule file for every family: strict, planned without a word, and right."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

from kt_core.cli.main import main
from kt_core.plan import starter
from kt_core.registry.registry import default_registry
from kt_core.runtime.load import prepare

from .gguf_of_model import write_gguf
from .tiny_models import CASES

ONE_OF_EACH = [c for c in CASES if "old" not in c.id and "flat" not in c.id and "-1b" not in c.id]
GPU = 1 << 20


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_the_file_is_strict_and_plans_silently(case, tmp_path, capsys):
    file, rules = tmp_path / "model.gguf", tmp_path / "rules.yaml"
    write_gguf(case.build(), file, case.gguf, case.quantization, case.style)
    assert main(["rules", "new", "--gguf", str(file), "--device", "cpu", "-o", str(rules)]) == 0
    assert main(["validate", "--strict", str(rules)]) == 0
    capsys.readouterr()
    words = ["--gguf", str(file), "--rules", str(rules), "--device", "cpu", "--strict"]
    assert main(["plan", *words, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["problems"] == []
    assert plan["unmatched"] == []
    operators = {module["operator"] for module in plan["modules"]}
    assert "kt_core.Linear" in operators
    assert ("kt_core.Experts" in operators) == bool(
        [m for m in plan["modules"] if m["path"].endswith("experts")]
    )
    assert case.quantization in rules.read_text()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "model.gguf"
    case = next(c for c in CASES if c.id == "mixtral")
    write_gguf(case.build(), file, case.gguf, "Q8_0", case.style)
    found = prepare(file, rules="none", device="cpu")
    yield found
    found.source.close()


def written(prepared, machine):
    groups = starter.groups_of(prepared.model, prepared.plan)
    placement = starter.place(groups, prepared.plan, machine)
    kernels = {g.what: f"kt_core.torch_{g.kind}" for g in groups if g.kind}
    return starter.text(prepared.plan, groups, placement, machine, kernels)


def devices(text):
    return [
        (rule["match"]["name"], rule["replace"]["kwargs"]["generate_device"])
        for rule in yaml.safe_load(text)["rules"]
    ]


def test_placement_follows_what_fits(prepared):
    groups = starter.groups_of(prepared.model, prepared.plan)
    whole = sum(group.size for group in groups)
    cache = prepared.plan.cache.bytes_per_token * prepared.plan.cache.context
    experts = next(group.size for group in groups if group.kind == "experts")
    large = starter.Machine({"cuda:0": 2 * (whole + cache)}, 1 << 40)
    assert {device for _, device in devices(written(prepared, large))} == {"cuda:0"}
    middle = starter.Machine({"cuda:0": int((whole + cache - experts) / 0.9) + 4096}, 1 << 40)
    text = written(prepared, middle)
    assert dict(devices(text))["\\.mlp\\.experts$"] == "cpu"
    assert dict(devices(text))["^model\\.embed_tokens$"] == "cpu"
    assert dict(devices(text))["^lm_head$"] == "cuda:0"
    assert "without its experts it fits on cuda:0" in text
    assert "out_device: cuda:0" in text
    small = starter.Machine({"cuda:0": 1024}, 1024)
    text = written(prepared, small)
    assert {device for _, device in devices(text)} == {"cpu"}
    assert "fit on no GPU that is here; mind that" in text
    assert "no GPU is here" in written(prepared, starter.Machine({}, None))


def test_kernels_on_packed_weights_come_before_those_that_dequantise(prepared):
    groups = starter.groups_of(prepared.model, prepared.plan)
    for group in groups:
        if group.kind:
            names = starter.candidates(default_registry(), group.kind, "cpu", group, prepared.plan)
            assert names[-1] == f"kt_core.torch_{group.kind}"


def test_a_model_that_kt_does_not_know_from_its_configuration(tmp_path, capsys):
    from transformers import OlmoConfig

    OlmoConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=100,
        architectures=["OlmoForCausalLM"],
    ).save_pretrained(tmp_path)
    status = main(["rules", "new", "--model", str(tmp_path), "--device", "cpu"])
    text = capsys.readouterr().out
    assert status == 0
    assert yaml.safe_load(text)["architectures"] == ["OlmoForCausalLM"]
    assert "14 x" not in text
    assert "2 x Linear self_attn.q_proj" in text
    assert torch.get_default_dtype() is torch.float32
