"""The rule file is valid, is found by its name, and a model answers by it as before."""

from __future__ import annotations

from kt_core.rules import select_rules
from kt_core.testing import check_model


def test_the_file_is_found_by_its_name():
    rules = select_rules(["LlamaForCausalLM"], variant="kt_plugin_template")
    assert rules.path == "kt_plugin_template:rules/kt_plugin_template.yaml"
    assert len(rules.rules) == 1


def test_a_model_answers_as_before(kt_tiny_llama):
    uses = ["kt_core.torch_linear"]
    check_model(kt_tiny_llama(), "kt_plugin_template", uses=uses, tolerance=1e-5)
