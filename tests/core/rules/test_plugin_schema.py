"""The schema that knows what is installed: it accepts what kt-validate accepts, and refuses the rest."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import Severity
from kt_core.registry.specs import AliasSpec
from kt_core.rules import check_text, schema_text
from kt_core.rules.plugin_schema import plugin_schema
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec


@pytest.fixture(scope="module")
def judge(all_distributions):
    """Return (what the schema says, what kt-validate says) of one ``replace``."""
    return judge_by(all_distributions)


def judge_by(registry):
    schema = plugin_schema(registry)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    def call(replace, **rule):
        document = [{"match": {"name": "^model"}, "replace": replace, **rule}]
        theirs = [error.message for error in validator.iter_errors(document)]
        checked = check_text(json.dumps(document), "rules.yaml", registry)
        ours = [p.render() for p in checked.problems if p.severity is Severity.ERROR]
        return theirs, ours

    return call


def test_every_shipped_file_passes(repository, all_distributions):
    validator = jsonschema.Draft202012Validator(plugin_schema(all_distributions))
    files = sorted(repository.glob("rules/*/*.yaml"))
    assert len(files) > 50
    for file in files:
        errors = list(validator.iter_errors(yaml.safe_load(file.read_text())))
        assert not errors, (file, errors)


LINEAR, EXPERTS = "kt_core.Linear", "kt_core.Experts"
GOOD = [
    {"class": "default"},
    {"kwargs": {"generate_device": "cpu"}},
    {"class": "kt_core.Module", "kwargs": {"device": "cuda:0"}},
    {"class": LINEAR},
    {"class": LINEAR, "kwargs": {"decode_max_tokens": 4, "out_device": "cuda"}},
    {"class": LINEAR, "kwargs": {"generate_op": "kt_ops_cpu.linear", "activation_bits": 16}},
    {"class": LINEAR, "kwargs": {"activation_bits": 16}},
    {"class": LINEAR, "kwargs": {"generate_op": "KLinearMarlin", "generate_device": "cuda"}},
    {
        "class": "ktransformers.operators.experts.KTransformersExperts",
        "kwargs": {"prefill_op": "KExpertsTorch", "generate_op": "KExpertsCPU"},
    },
    {
        "class": LINEAR,
        "kwargs": {
            "generate_op": "kt_ops_cpu.linear",
            "prefill_op": "kt_ops_cuda.marlin",
            "activation_bits": 8,
            "num_bits": 4,
        },
    },
    {"class": "kt_core.DecoderModel", "kwargs": {"transfer_map": {"10": "cuda:1"}}},
    {"class": "kt_core.Attention", "kwargs": {"absorb_for_prefill": False}},
]
BAD = [
    {"class": "default", "kwargs": {"device": "cuda:0"}},
    {"class": "kt_core.Lienar"},
    {"class": "torch.nn.Linear"},
    {"class": "default", "kwargs": {"generate_op": "kt_core.torch_linear"}},
    {"class": "kt_core.Module", "kwargs": {"activation_bits": 8}},
    {"class": LINEAR, "kwargs": {"activation_bit": 16}},
    {"class": LINEAR, "kwargs": {"decode_max_tokens": -1}},
    {"class": LINEAR, "kwargs": {"decode_max_tokens": "4"}},
    {"class": LINEAR, "kwargs": {"generate_op": "kt_ops_cpu.experts"}},
    {"class": LINEAR, "kwargs": {"generate_op": None}},
    {"class": LINEAR, "kwargs": {"generate_op": "kt_ops_cpu.linear", "activation_bits": 12}},
    {"class": LINEAR, "kwargs": {"generate_op": "kt_core.torch_linear", "activation_bits": 16}},
    {"class": LINEAR, "kwargs": {"generate_op": "kt_ops_cuda.marlin", "generate_device": "cpu"}},
    {"class": EXPERTS, "kwargs": {"generate_op": "LLAMAFILE", "generate_device": "cuda:0"}},
    {"class": EXPERTS, "kwargs": {"num_bits": 5, "prefill_op": "kt_ops_cuda.experts"}},
    {"class": EXPERTS, "kwargs": {"device": "cuda:0"}},
    {"class": LINEAR, "kwargs": {"generate_device": "gpu"}},
    {"class": "kt_core.Attention", "kwargs": {"absorb_for_prefill": True}},
    {"class": "kt_core.DecoderModel", "kwargs": {"transfer_map": {"10": "gpu"}}},
]


@pytest.mark.parametrize("replace", GOOD, ids=str)
def test_what_is_right_passes(replace, judge):
    assert judge(replace) == ([], [])


@pytest.mark.parametrize("replace", BAD, ids=str)
def test_what_is_wrong_fails(replace, judge):
    theirs, ours = judge(replace)
    assert theirs
    assert ours


OPTIONS = {
    "generate_op": st.sampled_from(["kt_ops_cpu.linear", "kt_ops_cpu.experts", "torch", "x.y"]),
    "prefill_op": st.sampled_from(["kt_ops_cuda.marlin", "KExpertsCPU", "KLinearTorch"]),
    "generate_device": st.sampled_from(["cpu", "cuda:0", "gpu"]),
    "prefill_device": st.sampled_from(["cpu", "cuda", "xpu"]),
    "decode_max_tokens": st.sampled_from([0, 1, 1025, "1"]),
    "activation_bits": st.sampled_from([8, 16, 4]),
    "num_bits": st.sampled_from([4, 5]),
    "backend": st.sampled_from(["llamafile", "AMXBF16"]),
    "unknown": st.just(1),
}
KWARGS = st.lists(st.sampled_from(sorted(OPTIONS)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: OPTIONS[name] for name in names})
)
CLASSES = st.sampled_from([LINEAR, EXPERTS, "kt_core.Module", "default", "KTransformersLinear"])


@settings(max_examples=300, deadline=None)
@given(CLASSES, KWARGS)
def test_it_agrees_with_kt_validate(all_distributions, name, kwargs):
    if not hasattr(judge_by, "all"):
        judge_by.all = judge_by(all_distributions)
    theirs, ours = judge_by.all({"class": name, "kwargs": kwargs})
    assert bool(theirs) == bool(ours), (theirs, ours)


SCHEMA = {
    "type": "object",
    "$defs": {"count": {"type": "integer", "minimum": 1}},
    "properties": {
        "width": {"$ref": "#/$defs/count"},
        "mode": {"enum": ["a", "b"], "default": {"$ref": "not a reference"}},
        "generate_op": {"type": "integer"},
    },
    "required": ["width"],
    "additionalProperties": False,
    "if": {"properties": {"mode": {"const": "b"}}, "required": ["mode"]},
    "then": {"properties": {"width": {"maximum": 8}}},
}


class TestThirdParty:
    @pytest.fixture
    def judge_toy(self):
        toy = fake_plugin(
            "toy",
            operators=[operator_spec("kt_toy.Op", kwargs_schema=SCHEMA)],
            kernels=[kernel_spec("kt_toy.linear")],
        )
        return judge_by(fake_registry(toy))

    @pytest.mark.parametrize(
        ("kwargs", "right"),
        [
            ({"width": 3}, True),
            ({"width": 0}, False),
            ({}, False),
            ({"width": 9, "mode": "a"}, True),
            ({"width": 9, "mode": "b"}, False),
            ({"width": 3, "other": 1}, False),
        ],
    )
    def test_its_schema_holds_with_its_references(self, kwargs, right, judge_toy):
        theirs, ours = judge_toy({"class": "kt_toy.Op", "kwargs": kwargs})
        assert (not theirs, not ours) == (right, right)

    def test_a_rule_that_continues_may_leave_required_options_out(self, judge_toy):
        replace = {"class": "kt_toy.Op", "kwargs": {"out_device": "cpu"}}
        assert judge_toy(replace)[0]
        assert not judge_toy(replace, **{"continue": True})[0]

    def test_an_operator_that_takes_anything_is_not_closed(self):
        open_schema = {"type": "object", "additionalProperties": True}
        toy = fake_plugin("toy", operators=[operator_spec("kt_toy.Op", kwargs_schema=open_schema)])
        judge = judge_by(fake_registry(toy))
        assert judge({"class": "kt_toy.Op", "kwargs": {"anything": 1}}) == ([], [])


def test_names_come_with_descriptions_canonical_ones_first(all_distributions):
    schema = plugin_schema(all_distributions)
    found = schema["$defs"]["replace"]["properties"]["class"]
    assert len(found["enum"]) == len(found["enumDescriptions"])
    assert found["enum"][0] == "default"
    said = dict(zip(found["enum"], found["enumDescriptions"], strict=True))
    assert said[LINEAR].endswith("(kt-core)")
    assert said["KTransformersLinear"].startswith("Alias of kt_core.Linear")
    names = [found.spec.name for found in all_distributions.operators()]
    assert found["enum"][1 : 1 + len(names)] == names


class TestCommand:
    def run(self, capsys, *arguments):
        from kt_core.cli.main import main

        assert main(["schema", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    def test_the_plain_schema(self, capsys):
        assert self.run(capsys) == json.loads(schema_text())

    def test_the_schema_of_what_is_installed(self, capsys):
        schema = self.run(capsys, "--with-plugins")
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "kt-core" in schema["$comment"]
        assert "kt_core.Linear" in schema["$defs"]["replace"]["properties"]["class"]["enum"]


def test_an_editor_is_offered_only_what_goes_with_the_class_and_the_kernels(all_distributions):
    definitions = plugin_schema(all_distributions)["$defs"]
    linear = definitions["operator.kt_core.Linear"]["properties"]
    offered = {name for name, said in linear.items() if not said.get("doNotSuggest")}
    assert offered >= {"generate_op", "prefill_op", "generate_device", "decode_max_tokens"}
    assert not offered & {"activation_bits", "num_bits", "backend", "transfer_map"}
    kernel = definitions["kernel.kt_ops_cpu.linear"]["properties"]
    assert "doNotSuggest" not in kernel["activation_bits"]


def test_names_that_other_plugins_give_are_known_too():
    aliases = [
        AliasSpec("OldLinear", "kt_core.Linear", "operator"),
        AliasSpec("old_kernel", "kt_core.torch_linear"),
    ]
    judge = judge_by(fake_registry(fake_plugin("toy", aliases=aliases)))
    right = {"class": "OldLinear", "kwargs": {"generate_op": "old_kernel"}}
    assert judge(right) == ([], [])
    for wrong in (
        {"class": "OldLinear", "kwargs": {"generate_op": "older_kernel"}},
        {"class": "OldLinear", "kwargs": {"unknown": 1}},
    ):
        theirs, ours = judge(wrong)
        assert theirs
        assert ours
