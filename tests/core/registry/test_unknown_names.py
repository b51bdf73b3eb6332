"""Names that are not registered: what is said, and what to install or write instead."""

from __future__ import annotations

import re

import pytest

from kt_core.errors import Location
from kt_core.registry import unknown
from kt_core.registry.known import DISTRIBUTION_OF_ALIAS, NOT_PROVIDED
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    """The answers below must not depend on what this environment happens to have."""
    monkeypatch.setattr(unknown, "installed_version", lambda name: None)


@pytest.fixture
def registry():
    return fake_registry()


def test_a_missing_distribution_is_named_with_its_pip_line():
    registry = fake_registry(
        fake_plugin("ops", distribution="kt-ops-cpu", version="0.1.0", package="kt_ops_cpu"),
    )
    place = Location("rules/deepseek_v3/amd.yaml", 13, 12)
    problem = registry.unknown("kt_ops_amd_blis.moe_int8", "kernel", location=place)
    core = registry.plugins[0].label
    assert problem.render() == (
        'rules/deepseek_v3/amd.yaml:13:12: KT210 "kt_ops_amd_blis.moe_int8" needs the distribution '
        "kt-ops-amd-blis, which is not installed\n"
        f"  installed: {core}, kt-ops-cpu 0.1.0\n"
        "  help: pip install kt-ops-amd-blis"
    )


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        *DISTRIBUTION_OF_ALIAS.items(),
        ("kt_ops_cpu.experts", "kt-ops-cpu"),
        ("kt_ops_cuda.marlin", "kt-ops-cuda"),
        ("ktransformers.operators.experts.KExpertsMarlin", "kt-ops-cuda"),
    ],
)
@pytest.mark.parametrize("what", ["operator", "kernel"])
def test_names_of_our_distributions_are_known(registry, name, distribution, what):
    problem = registry.unknown(name, what)
    assert (problem.code, problem.help) == ("KT210", f"pip install {distribution}")


def test_an_installed_distribution_without_a_plugin_is_told_apart(registry, monkeypatch):
    monkeypatch.setattr(unknown, "installed_version", lambda name: "0.1.0")
    problem = registry.unknown("KLinearMarlin", "kernel")
    assert problem.code == "KT210"
    assert "0.1.0 is installed, but it registers no plugin" in problem.message
    assert problem.help == "pip install --force-reinstall kt-ops-cuda"


@pytest.mark.parametrize("name", ["KLinearMarlin", "kt_ops_cuda.marlin", "kt_ops_cuda.anything"])
def test_our_broken_plugin_is_blamed_for_its_names(name):
    broken = fake_plugin(
        "kt_ops_cuda",
        distribution="kt-ops-cuda",
        package="kt_ops_cuda",
        kernels=[kernel_spec("kt_ops_cuda.marlin", summary="")],
    )
    problem = fake_registry(broken).unknown(name, "kernel")
    assert problem.code == "KT211"
    assert f'"{name}" is brought by the plugin "kt_ops_cuda" (kt-ops-cuda 1.0)' in problem.message
    assert "summary must be one line" in problem.message


def test_a_plugin_for_another_api_is_blamed_as_such():
    problem = fake_registry(fake_plugin(api=7)).unknown("kt_toy.linear", "kernel")
    assert problem.code == "KT212"
    assert "speaks plugin API 7" in problem.message


def test_a_name_that_the_installed_version_lacks():
    toy = fake_plugin(kernels=[kernel_spec("kt_toy.linear")])
    problem = fake_registry(toy).unknown("kt_toy.quantum", "kernel")
    assert problem.code == "KT215"
    assert problem.message == 'kt-toy 1.0 registers no kernel named "kt_toy.quantum"'
    assert problem.help == "pip install --upgrade kt-toy, or take one that is registered"


@pytest.mark.parametrize(
    ("name", "what", "kind", "near"),
    [
        ("KLinearTroch", "kernel", "linear", "KLinearTorch"),
        ("kt_core.Lineer", "operator", None, "kt_core.Linear"),
        ("KTransformerLinear", "operator", None, "KTransformersLinear"),
        ("kt_core.torch_expert", "kernel", "experts", "kt_core.torch_experts"),
    ],
)
def test_the_nearest_name_is_suggested(registry, name, what, kind, near):
    problem = registry.unknown(name, what, kind=kind)
    assert (problem.code, problem.help) == ("KT215", f'did you mean "{near}"?')


def test_a_class_is_suggested_by_its_last_word(registry):
    problem = registry.unknown("KMoEGate", "operator")
    assert problem.help == 'did you mean "ktransformers.operators.gate.KMoEGate"?'


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.nn.Linear", "a.b.c.D"])
def test_import_paths_are_not_followed_and_that_is_said(registry, name):
    problem = registry.unknown(name, "operator")
    assert problem.code == "KT215"
    assert (
        "a dotted name is looked up in the registry; kt never follows import paths" in problem.facts
    )
    assert any(
        fact.startswith("registered: ") and "kt_core.Linear" in fact for fact in problem.facts
    )


def test_a_kernel_where_an_operator_belongs(registry):
    problem = registry.unknown("KLinearTorch", "operator")
    assert (
        problem.message == '"KLinearTorch" is a kernel, not an operator; "class" names an operator'
    )
    assert problem.help == "class: kt_core.Linear, and generate_op: KLinearTorch among its kwargs"


def test_an_operator_where_a_kernel_belongs():
    registry = fake_registry(fake_plugin(operators=[operator_spec("kt_toy.Norm")]))
    problem = registry.unknown("kt_toy.Norm", "kernel")
    assert problem.message == '"kt_toy.Norm" is an operator, not a kernel; it goes into "class"'


def test_a_kernel_of_the_wrong_kind(registry):
    problem = registry.unknown("KExpertsTorch", "kernel", kind="linear")
    assert (
        problem.message
        == '"KExpertsTorch" is a kernel for experts; a kernel for linear is needed here'
    )
    assert problem.facts == ("kernels for linear: kt_core.torch_linear",)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("KLinearTorchW8A8A2", "Ascend NPUs"),
        ("ktransformers.operators.experts.KTransformersExpertsW8A8", "Ascend NPUs"),
        ("KDeepseekV2AttentionW8A8A2Serve", "Ascend NPUs"),
        ("KLinearIPEXLLM", "Intel GPUs"),
        ("ktransformers.operators.gate.KMoEGateIPEXLLM", "Intel GPUs"),
        ("KLinearFP8", "FP8"),
        ("KLinearQ8", "int8"),
        ("AMXINT4", "AMX"),
        ("MXFP4", "weight formats that kt does not read"),
        ("MLPCPUExperts", "dropped this name"),
    ],
)
def test_names_of_ktransformers_without_a_counterpart(registry, name, words):
    for what in ("operator", "kernel"):
        problem = registry.unknown(name, what)
        assert problem.code == "KT219"
        assert words in problem.message
        assert problem.help


def test_what_is_said_not_to_be_provided_is_indeed_not_registered(registry):
    """A name that some plugin of ours brings must leave the list."""
    names = {
        name.rpartition(".")[2] for name in registry.operator_names() + registry.kernel_names()
    }
    for entry in NOT_PROVIDED:
        registered = [name for name in names if re.fullmatch(entry.names, name)]
        assert not registered, f"{entry.names}: {registered}"


def test_a_plugin_may_bring_what_ktransformers_had():
    toy = fake_plugin(kernels=[kernel_spec("kt_toy.fp8", aliases=("KLinearFP8",))])
    assert fake_registry(toy).kernel("KLinearFP8").spec.name == "kt_toy.fp8"


def test_an_unmarked_hook_is_mentioned_when_its_names_are_missed():
    class Plugin:
        KT_PLUGIN_API = 1

        def kt_register_kernels(self):
            return [kernel_spec("kt_toy.linear")]

    from kt_core.registry.candidates import Candidate

    toy = Candidate("toy", "kt-toy", "1.0", "kt_toy.plugin", "kt_toy", Plugin)
    problem = fake_registry(toy).unknown("kt_toy.linear", "kernel")
    assert any("kt_register_kernels is not marked" in fact for fact in problem.facts)
