"""Choosing a rule file by what the files say they are for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from kt_core.errors import RuleError
from kt_core.registry.hookspecs import hookimpl
from kt_core.registry.registry import Registry
from kt_core.rules import available_rules, check_text, select_rules
from kt_core.rules import select as selecting


def rule_file(architectures, device=None, description=""):
    kwargs = f", kwargs: {{generate_device: {device}}}" if device else ""
    return (
        f"architectures: [{architectures}]\ndescription: {description or 'a test'}\n"
        f"rules:\n- match: {{name: '^model$'}}\n  replace: {{class: kt_core.Module{kwargs}}}\n"
    )


FILES = {
    "alpha/cpu.yaml": rule_file("AlphaForCausalLM", "cpu"),
    "alpha/cuda.yaml": rule_file("AlphaForCausalLM", "cuda:0"),
    "alpha/two-gpus.yml": rule_file("AlphaForCausalLM, BetaForCausalLM", "cuda:1"),
    "gamma/any.yaml": rule_file("GammaForCausalLM"),
    "delta/one.yaml": rule_file("DeltaForCausalLM", "cpu", "the first"),
    "delta/two.yaml": rule_file("DeltaForCausalLM", "cpu", "the second"),
    "notes.txt": "not a rule file",
    "_private/x.yaml": rule_file("PrivateForCausalLM"),
    "plain.yaml": "- match: {name: a}\n  replace: {class: default}\n",
    "broken/cpu.yaml": rule_file("BrokenForCausalLM", "cpu").replace(
        "kt_core.Module", "kt_core.Modul"
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        file = tmp_path / "shipped" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    selecting._shipped.cache_clear()
    monkeypatch.setattr(selecting, "_folders", lambda: [tmp_path / "shipped"])
    yield tmp_path
    selecting._shipped.cache_clear()


def chosen(registry, *args, **kwargs):
    return select_rules(*args, registry=registry, **kwargs).path


@pytest.mark.parametrize(
    ("device", "path"),
    [
        ("cpu", "rules/alpha/cpu.yaml"),
        ("cuda", "rules/alpha/cuda.yaml"),
        ("cuda:3", "rules/alpha/cuda.yaml"),
    ],
)
def test_the_device_decides(device, path, folder, registry):
    assert chosen(registry, ["AlphaForCausalLM"], device=device) == path


def test_the_variant_decides_when_it_is_named(folder, registry):
    assert chosen(registry, "AlphaForCausalLM", "two-gpus") == "rules/alpha/two-gpus.yml"


def test_any_of_a_model_s_architectures_will_do(folder, registry):
    assert chosen(registry, ["Unknown", "BetaForCausalLM"]) == "rules/alpha/two-gpus.yml"


def test_a_file_that_names_no_device_fits_every_device(folder, registry):
    assert chosen(registry, ["GammaForCausalLM"], device="xpu") == "rules/gamma/any.yaml"


def failure(registry, *args, **kwargs):
    with pytest.raises(RuleError) as caught:
        select_rules(*args, registry=registry, **kwargs)
    return caught.value.problems[0]


def test_an_unknown_architecture_lists_the_known_ones(folder, registry):
    problem = failure(registry, ["AlphaForCasualLM"])
    assert problem.code == "KT160"
    assert "AlphaForCausalLM, BetaForCausalLM, BrokenForCausalLM" in problem.facts[0]
    assert "nearest: AlphaForCausalLM" in problem.facts
    assert "PrivateForCausalLM" not in problem.facts[0]
    assert failure(registry, []).code == "KT160"


def test_files_that_fit_equally_are_listed(folder, registry):
    problem = failure(registry, ["DeltaForCausalLM"], device="cpu")
    assert problem.code == "KT161"
    assert problem.facts == (
        "rules/delta/one.yaml (kt-core, on cpu): the first",
        "rules/delta/two.yaml (kt-core, on cpu): the second",
    )


def test_no_file_for_a_device_or_variant_is_an_error_not_another_file(folder, registry):
    assert failure(registry, ["BetaForCausalLM"], device="cpu").code == "KT162"
    assert failure(registry, ["DeltaForCausalLM"], device="cuda").code == "KT162"
    problem = failure(registry, ["AlphaForCausalLM"], "two-gpu")
    assert problem.code == "KT162"
    assert "two-gpus" in (problem.help or "")


def test_what_is_wrong_in_the_chosen_file_is_raised(folder, registry):
    assert failure(registry, ["BrokenForCausalLM"]).code == "KT215"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    package = tmp_path / "kt_sample_rules"
    (package / "files").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "files" / "gpu.yaml").write_text(rule_file("EpsilonForCausalLM", "cuda"))
    (package / "files" / "alpha.yaml").write_text(rule_file("AlphaForCausalLM", "cpu"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield SimpleNamespace(
        __name__="kt_sample_rules",
        KT_PLUGIN_API=1,
        kt_register_rules=hookimpl(
            lambda: ["kt_sample_rules:files/gpu.yaml", "kt_sample_rules:files/alpha.yaml"]
        ),
    )
    sys.modules.pop("kt_sample_rules", None)


def test_plugins_bring_rule_files_too_and_kt_s_own_come_first(folder, plugin):
    from kt_core.operators import plugin as core

    registry = Registry.of(core, plugin, environ={})
    assert registry.problems() == ()
    names = {file.name: file.distribution for file in available_rules(registry)}
    assert names["kt_sample_rules:files/gpu.yaml"] == "kt_sample_rules"
    assert chosen(registry, ["EpsilonForCausalLM"]) == "kt_sample_rules:files/gpu.yaml"
    assert chosen(registry, ["AlphaForCausalLM"], "alpha") == "kt_sample_rules:files/alpha.yaml"
    assert chosen(registry, ["AlphaForCausalLM"], device="cpu") == "rules/alpha/cpu.yaml"


def test_every_shipped_file_is_right_and_names_its_architectures():
    from kt_core.operators import plugin as core

    registry = Registry.of(core, environ={})
    selecting._shipped.cache_clear()
    files = available_rules(registry)
    assert {file.distribution for file in files} == {"kt-core"}
    assert "LlamaForCausalLM" in {name for file in files for name in file.architectures}
    for file in files:
        assert file.description, file.name
        codes = {problem.code for problem in check_text(file.text, file.name, registry).problems}
        # Kernels of kt's other distributions may be missing here; nothing else may be wrong.
        assert codes <= {"KT210"}, file.name
