"""Every rule a spec is held to, one violation at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kt_core.registry.records import State
from kt_core.registry.validation import rule_resource
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec

BAD_KERNELS = {
    "name-plain": ({"name": "linear"}, "not of the form package.word"),
    "name-foreign": ({"name": "kt_other.linear"}, "must start with the plugin's own package"),
    "name-lookalike": ({"name": "kt_toys.linear"}, "must start with the plugin's own package"),
    "name-space": ({"name": "kt_toy.my linear"}, "not of the form package.word"),
    "name-unicode": ({"name": "kt_toy.lineär"}, "not of the form package.word"),
    "name-number": ({"name": 3}, "not of the form package.word"),
    "target-dots": ({"target": "kt_toy.kernels.Kernel"}, "not of the form package.module:Class"),
    "target-call": ({"target": "kt_toy.kernels:make()"}, "not of the form package.module:Class"),
    "target-path": ({"target": "../kernels.py:Kernel"}, "not of the form package.module:Class"),
    "target-none": ({"target": None}, "not of the form package.module:Class"),
    "summary-empty": ({"summary": "  "}, "summary must be one line"),
    "summary-lines": ({"summary": "a\nb"}, "summary must be one line"),
    "alias-string": ({"aliases": "Toy"}, "aliases must be a tuple"),
    "alias-none": ({"aliases": None}, "aliases must be a tuple"),
    "alias-twice": ({"aliases": ("A", "A")}, "aliases names something twice"),
    "alias-number": ({"aliases": (1,)}, "aliases holds 1"),
    "alias-dash": ({"aliases": ("my-kernel",)}, "aliases holds 'my-kernel'"),
    "alias-default": ({"aliases": ("default",)}, 'alias "default" has a meaning of its own'),
    "alias-ours": ({"aliases": ("MOE_INT8",)}, "reserved for kt-ops-amd-blis"),
    "alias-our-package": ({"aliases": ("kt_ops_cpu.x",)}, "reserved for kt-ops-cpu"),
    "kind-case": ({"kind": "Linear"}, "kind 'Linear' is not a lower-case word"),
    "kind-none": ({"kind": None}, "kind None is not a lower-case word"),
    "devices-empty": ({"devices": ()}, "devices must not be empty"),
    "devices-string": ({"devices": "cpu"}, "devices must be a tuple"),
    "devices-index": ({"devices": ("cuda:0",)}, "devices holds 'cuda:0'"),
    "formats-empty": ({"weight_formats": ()}, "weight_formats must not be empty"),
    "formats-word": ({"weight_formats": ("Q4 K",)}, "weight_formats holds 'Q4 K'"),
    "schema": ({"options_schema": {"type": "array"}}, 'options_schema must say "type": "object"'),
}

BAD_OPERATORS = {
    "replaces-string": ({"replaces": "torch.nn.Linear"}, "replaces must be a tuple"),
    "replaces-word": ({"replaces": ("torch.nn:Linear",)}, "replaces holds 'torch.nn:Linear'"),
    "kernel-kind": ({"kernel_kind": "a b"}, "kernel_kind 'a b' is not a lower-case word"),
    "schema": ({"kwargs_schema": None}, "kwargs_schema is NoneType"),
}


def refused(**plugin):
    (record,) = [r for r in fake_registry(fake_plugin(**plugin)).plugins if r.name == "toy"]
    assert (record.state, record.code) == (State.BROKEN, "KT211")
    assert record.operators == record.kernels == record.rules == ()
    return "\n".join([record.reason, *record.facts])


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_a_bad_kernel_refuses_its_plugin(name):
    fields, reason = BAD_KERNELS[name]
    bad = replace(kernel_spec("kt_toy.x"), **fields)
    said = refused(kernels=[kernel_spec("kt_toy.good"), bad])
    assert reason in said


@pytest.mark.parametrize("name", BAD_OPERATORS)
def test_a_bad_operator_refuses_its_plugin(name):
    fields, reason = BAD_OPERATORS[name]
    assert reason in refused(operators=[operator_spec("kt_toy.X", **fields)])


def test_all_violations_are_told_at_once():
    said = refused(
        operators=[operator_spec("kt_toy.X", target="", summary="")],
        kernels=[kernel_spec("kt_toy.y", devices=())],
        rules=["nowhere"],
    )
    for words in ("kt_toy.X': target", "kt_toy.X': summary", "kt_toy.y': devices", "nowhere"):
        assert words in said
    assert "(and 3 more)" in said


def test_names_of_a_refused_plugin_are_remembered():
    registry = fake_registry(
        fake_plugin(kernels=[kernel_spec("kt_toy.x", aliases=("ToyX",), summary="")])
    )
    problem = registry.unknown("ToyX", "kernel")
    assert problem.code == "KT211"
    assert problem.message.startswith('"ToyX" is brought by the plugin "toy" (kt-toy 1.0)')
    assert "summary must be one line" in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "kt_toy",
        "kt_toy:",
        ":a.yaml",
        "kt_toy:../a.yaml",
        "kt_toy:/etc/a.yaml",
        "kt_toy:a//b.yaml",
        "kt_toy:a\\..\\b.yaml",
        "kt_toy:a.txt",
        "kt_other:a.yaml",
        "kt_toyx:a.yaml",
        3,
    ],
)
def test_rule_files_outside_the_package_are_refused(text):
    assert isinstance(rule_resource(text, "kt_toy"), str)


@pytest.mark.parametrize("text", ["kt_toy:a.yaml", "kt_toy.sub:rules/x-1/b.yml"])
def test_rule_files_inside_the_package_are_taken(text):
    assert rule_resource(text, "kt_toy") == tuple(text.split(":"))
