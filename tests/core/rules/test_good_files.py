"""Rule files that are right, in every way they may be written, and what is read from them."""

from __future__ import annotations

import json

import pytest

from kt_core.rules import RuleSet, check_text, load_rules

RULE = "- match: {name: '^lm_head$'}\n  replace: {class: kt_core.Linear}\n"

GOOD = {
    "list": RULE,
    "mapping": "version: 1\narchitectures: [LlamaForCausalLM]\ndescription: for tests\nrules:\n"
    + RULE.replace("\n", "\n  ").replace("- match", "  - match", 1),
    "without-version": "rules:\n- match: {name: x}\n  replace: {class: default}\n",
    "json": json.dumps(
        [{"match": {"name": "x"}, "replace": {"class": "default"}, "recursive": False}]
    ),
    "crlf": RULE.replace("\n", "\r\n"),
    "byte-order-mark": "\ufeff" + RULE,
    "document-start-and-end": "---\n" + RULE + "...\n",
    "comments-with-tabs": "#\ta comment\n" + RULE.replace("\n", "  #\tanother\n", 1),
    "quoted-keys": RULE.replace("match", '"match"').replace("replace", "'replace'"),
    "folded-pattern": "- match:\n    name: >-\n      ^lm_head$\n  replace: {class: default}\n",
    "other-language": "description: für Tests 模型 😀\nrules:\n" + RULE,
    "only-a-class": "- match: {class: torch.nn.Linear}\n  replace: {class: default}\n",
    "both": "- match: {class: torch.nn.Linear, name: a}\n  replace: {class: default}\n",
    "empty-kwargs": "- match: {name: a}\n  replace: {class: default, kwargs: {}}\n",
    "all-truths": "".join(
        f"- match: {{name: '{word}$'}}\n  replace: {{class: default}}\n  recursive: {word}\n"
        for word in ("true", "True", "TRUE", "false", "False", "FALSE")
    ),
    "options-of-every-kind": (
        "- match: {name: a}\n  replace:\n    class: sample.LowRank\n    kwargs:\n"
        "      rank: 8\n      scale: 0.5\n      mode: concat\n      tags: [a, b]\n      seed: null\n"
        "      either: auto\n      inner: {depth: -2}\n"
    ),
    "kernel-options": (
        "- match: {name: a}\n  replace:\n    class: kt_core.Linear\n    kwargs:\n"
        "      generate_op: sample.gpu_linear\n      generate_device: cuda:3\n      group_size: 64\n"
        "      prefill_op: torch\n      prefill_device: cpu\n      decode_max_tokens: 4\n"
    ),
    "an-open-operator": (
        "- match: {name: a}\n  replace: {class: sample.Open, kwargs: {anything: [1, {x: 2.5}]}}\n"
    ),
    "catch-all-at-the-end": RULE + "- match: {name: '.*'}\n  replace: {class: default}\n",
    "layers-one-by-one": "".join(
        f"- match: {{name: '^model\\.layers\\.{i}\\.'}}\n  replace: {{class: default}}\n"
        for i in range(12)
    ),
    "numbers-that-end": "".join(
        f"- match: {{name: '{pattern}'}}\n  replace: {{class: default}}\n"
        for pattern in (
            r"layers\.1$",
            r"layers\.2\b",
            r"layers\.(1|2)(\.|$)",
            r"layers\.\d+",
            r"layers\.[0-9]+.*",
            r"layers\.3(?!\d)",
            r"w1",
            r"conv2d",
        )
    ),
    "what-only-regex-knows": r"- match: {name: '^\p{Ll}+_head$'}"
    "\n  replace: {class: default}\n",
    "device-syntax": "".join(
        f"- match: {{name: 'a{i}'}}\n"
        f"  replace: {{class: default, kwargs: {{generate_device: {device}}}}}\n"
        for i, device in enumerate(("cpu", "cpu:0", "cuda", "cuda:0", "cuda:15", "xpu", "npu:1"))
    ),
}


@pytest.mark.parametrize("libyaml", [True, False], ids=["libyaml", "python"])
@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_has_no_finding(name, libyaml, registry):
    checked = check_text(GOOD[name].encode(), "rules.yaml", registry, libyaml=libyaml)
    assert [problem.render() for problem in checked.problems] == []
    assert checked.ruleset is not None
    assert checked.ruleset.rules


def read(name, registry) -> RuleSet:
    ruleset = check_text(GOOD[name], "rules.yaml", registry).ruleset
    assert ruleset is not None
    return ruleset


def test_both_forms_hold_the_same_rules(registry):
    plain, mapping = read("list", registry), read("mapping", registry)
    assert plain.rules == mapping.rules
    assert (plain.architectures, plain.description) == ((), "")
    assert (mapping.architectures, mapping.description) == (("LlamaForCausalLM",), "for tests")
    assert str(mapping.places["description"]) == "rules.yaml:3:14"


def test_values_have_the_types_they_look_like(registry):
    kwargs = read("options-of-every-kind", registry).rules[0].kwargs
    assert kwargs == {
        "rank": 8,
        "scale": 0.5,
        "mode": "concat",
        "tags": ["a", "b"],
        "seed": None,
        "either": "auto",
        "inner": {"depth": -2},
    }
    assert type(kwargs["rank"]) is int
    assert type(kwargs["scale"]) is float
    assert [rule.recursive for rule in read("all-truths", registry).rules] == [True] * 3 + [
        False
    ] * 3


def test_every_value_knows_its_place(registry):
    rule = read("options-of-every-kind", registry).rules[0]
    places = {
        "": "1:3",
        "match": "1:10",
        "match.name": "1:17",
        "replace.class": "3:12",
        "replace.kwargs": "5:7",
        "replace.kwargs.tags": "8:13",
        "replace.kwargs.tags.1": "8:17",
        "replace.kwargs.inner.depth": "11:22",
        # Not in the file: the nearest key that is.
        "replace.kwargs.absent": "5:7",
        "recursive": "1:3",
    }
    assert {key: str(rule.place(key)).removeprefix("rules.yaml:") for key in places} == places


def test_load_rules_raises_every_error_at_once(tmp_path, registry):
    from kt_core.errors import RuleError

    file = tmp_path / "rules.yaml"
    file.write_text("- match: {name: '('}\n  replace: {clas: default}\n  recursive: no\n")
    with pytest.raises(RuleError) as caught:
        load_rules(file, registry)
    assert [problem.code for problem in caught.value.problems] == ["KT121", "KT116"]
    file.write_text(RULE)
    assert load_rules(file, registry).path == str(file)
