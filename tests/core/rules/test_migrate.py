"""Rule files of KTransformers in kt's own words: what changes, what is said, and what stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from kt_core.errors import RuleError, Severity
from kt_core.registry.known import NAME_OF_ALIAS
from kt_core.rules.migrate import migrate

FOLDER = os.environ.get("KT_UPSTREAM_RULES")

WHOLE = """\
# Every linear but one.
- match:
    name: "^model\\\\.layers\\\\.(?!.*kv_b_proj).*$"  # a pattern
    class: torch.nn.Linear
  replace:
    class: ktransformers.operators.linear.KTransformersLinear  # the fast one
    kwargs:
      generate_device: "cpu"
      prefill_device: "cpu"
      generate_op: "KLinearTorch"
      prefill_op: "KLinearTorch"

- match:
    class: ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE
  replace:
    class: ktransformers.operators.experts.KDeepseekV3MoE
    kwargs: {generate_device: cpu, prefill_device: cpu}
"""


def new(text, registry):
    return migrate(text, "rules.yaml", registry)


def errors(migrated):
    return [p.code for p in migrated.left if p.severity is Severity.ERROR]


def test_names_change_and_comments_stay(registry):
    migrated = new(WHOLE, registry)
    assert errors(migrated) == []
    text = migrated.text
    for comment in ("# Every linear but one.", "# a pattern", "# the fast one"):
        assert comment in text
    assert "ktransformers" not in text
    data = yaml.safe_load(text)
    assert data["version"] == 1
    assert data["architectures"] == ["DeepseekV3ForCausalLM"]
    first, second = data["rules"]
    assert first["match"] == {
        "name": "^model\\.layers\\.(?!.*kv_b_proj).*$",
        "class": "torch.nn.Linear",
    }
    assert first["replace"]["class"] == "kt_core.Linear"
    assert first["replace"]["kwargs"]["prefill_op"] == "kt_core.torch_linear"
    modern = "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE"
    assert second["match"]["class"] == modern
    said = [str(change) for change in migrated.changes]
    assert any("line 6:" in line and "-> kt_core.Linear" in line for line in said)
    assert [change.line for change in migrated.changes] == sorted(c.line for c in migrated.changes)


def test_what_is_modern_stays_as_it_is(registry):
    once = new(WHOLE, registry).text
    again = new(once, registry)
    assert again.text == once
    assert again.changes == []


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ("{generate_op: KLinearTorch, prefill_op: None}", {"generate_op": "kt_core.torch_linear"}),
        (
            "{prefill_device: cuda, prefill_op: None, generate_device: cpu, generate_op: KLinearTorch}",
            {
                "prefill_device": "cpu",
                "generate_device": "cpu",
                "generate_op": "kt_core.torch_linear",
            },
        ),
        ("{device: cuda}", {"generate_device": "cuda", "prefill_device": "cuda"}),
        (
            "{generate_device: cpu, device: cuda}",
            {"generate_device": "cpu", "prefill_device": "cuda"},
        ),
        (
            "{generate_linear_type: QuantizedLinearMarlin}",
            {"generate_op": "kt_ops_cuda.marlin"},
        ),
        (
            "{generate_op: KLinearTorch, generate_linear_type: QuantizedLinearMarlin}",
            {"generate_op": "kt_core.torch_linear"},
        ),
        ("{generate_op: VLinearMarlin}", {"generate_op": "kt_ops_cuda.marlin"}),
        ("{dump_enable: False, dump_dir: x}", None),
    ],
)
@pytest.mark.parametrize("block", [False, True], ids=["flow", "block"])
def test_options(kwargs, expected, block, registry):
    if block:
        lines = yaml.safe_load(kwargs).items()
        inner = "".join(f"\n      {key}: {value}  # note" for key, value in lines)
        text = f"- match: {{name: ^x$}}\n  replace:\n    class: KTransformersLinear\n    kwargs:{inner}\n"
    else:
        text = (
            f"- match: {{name: ^x$}}\n  replace: {{class: KTransformersLinear, kwargs: {kwargs}}}\n"
        )
    migrated = new(text, registry)
    replace = yaml.safe_load(migrated.text)["rules"][0]["replace"]
    assert replace.get("kwargs") == expected, migrated.text
    assert replace["class"] == "kt_core.Linear"
    assert migrated.changes


def test_a_key_that_was_never_read_goes(registry):
    text = """
- match: {name: ^x$}
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    device: cpu   # where it loads
    kwargs:
      generate_device: cuda
"""
    migrated = new(text, registry)
    assert "device" not in yaml.safe_load(migrated.text)["rules"][0]["replace"]
    assert any("never read it" in str(change) for change in migrated.changes)
    assert errors(migrated) == []


DEAD = """
# The experts.
- match:
    name: "experts$"
  replace:
    class: ktransformers.operators.experts.KTransformersExperts
  recursive: False

# Never:
- match:
    name: "experts$"   # the same
    class: ktransformers.operators.experts.KExpertsCPU
  replace:
    class: default

- match:
    class: ktransformers.models.modeling_deepseek.DeepseekV2MoE
  replace: {class: default}
- match:
    class: ktransformers.models.modeling_deepseek.DeepseekV2RMSNorm
  replace: {class: default}
- match:
    class: ktransformers.models.modeling_deepseek_v3.MoEGate
  replace: {class: default}
"""


def test_dead_rules_become_comments_that_say_why(registry):
    migrated = new(DEAD, registry)
    data = yaml.safe_load(migrated.text)
    assert len(data["rules"]) == 3
    assert data["architectures"] == ["DeepseekV2ForCausalLM"]
    assert "# dead: rule 2 never applies" in migrated.text
    assert '#     name: "experts$"   # the same' in migrated.text
    wrong = "the class is one of DeepseekV3ForCausalLM, the file is for DeepseekV2ForCausalLM"
    assert f"# dead: {wrong}" in migrated.text
    assert sum(change.after == "a comment" for change in migrated.changes) == 2
    assert errors(migrated) == []


def test_what_kt_does_not_have_is_left_and_named(registry):
    text = """
- match: {name: "proj$"}
  replace: {class: KTransformersLinear, kwargs: {generate_op: KLinearIPEXLLM}}
"""
    migrated = new(text, registry)
    assert "KLinearIPEXLLM" in migrated.text
    assert errors(migrated) == ["KT219"]


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "KT114"), ("a: [", "KT105"), ("- &x {match: {name: y}}", "KT107"), ("5", "KT114")],
)
def test_what_is_no_rule_file_is_refused(text, code, registry):
    with pytest.raises(RuleError) as caught:
        new(text, registry)
    assert caught.value.problems


def test_the_names_behind_aliases_are_those_that_plugins_register():
    """Of the plugins that are installed; the table is for those that are not."""
    from kt_core.registry.registry import default_registry

    found = {alias: default_registry().kernel(alias) for alias in NAME_OF_ALIAS}
    for alias, kernel in found.items():
        assert kernel is None or kernel.spec.name == NAME_OF_ALIAS[alias]


@pytest.mark.skipif(FOLDER is None, reason="KT_UPSTREAM_RULES does not name KTransformers' rules")
def test_its_own_files_keep_their_comments_and_meaning(registry):
    files = sorted(Path(FOLDER or ".").rglob("*.yaml"))
    assert len(files) == 38
    for file in files:
        text = file.read_text(encoding="utf-8")
        migrated = migrate(text, str(file), registry)
        assert "class: ktransformers.models" not in _living(migrated.text)
        before, after = yaml.safe_load(text), yaml.safe_load(migrated.text)
        dead = sum(change.after == "a comment" for change in migrated.changes)
        assert len(after["rules"]) == len(before) - dead
        kept = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
        assert all(line in migrated.text for line in kept)
        codes = {p.code for p in migrated.left if p.severity is not Severity.NOTE}
        assert codes <= {"KT210", "KT219"}, (file, codes)
        assert migrate(migrated.text, str(file), registry).text == migrated.text


def _living(text):
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
