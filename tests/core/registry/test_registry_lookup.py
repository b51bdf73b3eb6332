"""Names, aliases and kinds: what a registry finds, and what it loads."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kt_core import Accepted
from kt_core.errors import PluginError
from kt_core.registry.records import State
from kt_core.registry.registry import Registry, default_registry
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec


@pytest.fixture
def registry():
    return fake_registry(
        fake_plugin(
            operators=[
                operator_spec("kt_toy.Linear", aliases=("ToyLinear",), kernel_kind="linear"),
                operator_spec("kt_toy.Norm"),
            ],
            kernels=[
                kernel_spec("kt_toy.linear", aliases=("Toy",)),
                kernel_spec("kt_toy.experts", kind="experts"),
            ],
            rules=["kt_toy:rules/b.yaml", "kt_toy.sub:a.yml"],
        ),
        core=False,
    )


def test_names_and_aliases_find_the_same_spec(registry):
    assert registry.operator("kt_toy.Linear") is registry.operator("ToyLinear")
    assert registry.kernel("kt_toy.linear") is registry.kernel("Toy")
    assert registry.operator("toylinear") is None
    assert registry.operator("Toy") is None


def test_a_kernel_is_only_found_as_its_own_kind(registry):
    assert registry.kernel("Toy", "linear").spec.name == "kt_toy.linear"
    assert registry.kernel("Toy", "experts") is None


def test_listings_are_sorted_and_name_each_spec_once(registry):
    assert [found.spec.name for found in registry.operators()] == ["kt_toy.Linear", "kt_toy.Norm"]
    assert [found.spec.name for found in registry.kernels()] == ["kt_toy.experts", "kt_toy.linear"]
    assert [found.spec.name for found in registry.kernels("experts")] == ["kt_toy.experts"]
    assert registry.operator_names() == ("ToyLinear", "kt_toy.Linear", "kt_toy.Norm")
    assert registry.kernel_names("linear") == ("Toy", "kt_toy.linear")
    assert [str(rule) for rule in registry.rule_files()] == [
        "kt_toy.sub:a.yml",
        "kt_toy:rules/b.yaml",
    ]


def test_found_says_which_plugin_it_came_from(registry):
    found = registry.operator("ToyLinear")
    assert (found.plugin.name, found.plugin.label) == ("toy", "kt-toy 1.0")


def test_of_takes_modules_and_objects_with_hooks():
    from kt_core import hookimpl
    from kt_core.operators import plugin as core

    class Plugin:
        KT_PLUGIN_API = 1

        @hookimpl
        def kt_register_kernels(self):
            return [kernel_spec("anything.goes")]

    registry = Registry.of(core, Plugin(), Plugin)
    assert registry.kernel("KLinearTorch").plugin.label.startswith("kt-core ")
    assert registry.kernel("anything.goes").plugin.state is State.READY
    # The class itself is a slip: its hooks lack their self.
    (broken,) = [record for record in registry.plugins if record.state is State.BROKEN]
    assert "kt_register_kernels" in broken.reason


def test_the_cores_own_plugin_is_sound():
    (record,) = fake_registry().plugins
    assert (record.name, record.state, record.reason) == ("kt_core", State.READY, "")
    assert record.notes == ()


def test_the_default_registry_is_made_once():
    assert default_registry() is default_registry()


@pytest.fixture
def kernels(monkeypatch):
    """A module of throw-away kernel classes, importable as ``kt_toy.kernels``."""
    pytest.importorskip("torch")
    from kt_core.operators.kernel import LinearKernel

    class Whole(LinearKernel):
        def load(self, weight, bias):
            pass

        def forward(self, x):
            return x

    class Half(LinearKernel):
        def load(self, weight, bias):
            pass

    module = ModuleType("kt_toy.kernels")
    module.Whole, module.Half, module.Stranger, module.value = Whole, Half, dict, 3
    module.Outer = type("Outer", (), {"Inner": Whole})
    monkeypatch.setitem(sys.modules, "kt_toy", ModuleType("kt_toy"))
    monkeypatch.setitem(sys.modules, "kt_toy.kernels", module)
    return module


@pytest.mark.parametrize("path", ["Whole", "Outer.Inner"])
def test_load_target_returns_the_class(kernels, path):
    spec = kernel_spec("kt_toy.linear", target=f"kt_toy.kernels:{path}")
    registry = fake_registry(fake_plugin(kernels=[spec]))
    assert registry.load_target(registry.kernel("kt_toy.linear").spec) is kernels.Whole


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("kt_toy.kernels:Absent", 'kt_toy.kernels has no "Absent"'),
        ("kt_toy.kernels:value", "it is of type int, not a class"),
        ("kt_toy.kernels:Stranger", "dict is no kt_core.operators.kernel.LinearKernel"),
        ("kt_toy.kernels:Half", "Half lacks the methods forward"),
        ("kt_toy.absent:X", "kt_toy.absent cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_target_that_is_no_kernel_is_kt216(kernels, target, reason):
    spec = kernel_spec("kt_toy.linear", target=target)
    registry = fake_registry(fake_plugin(kernels=[spec]))
    with pytest.raises(PluginError) as caught:
        registry.load_target(spec)
    problem = caught.value.problems[0]
    assert problem.code == "KT216"
    assert "kt-toy 1.0" in problem.message
    assert reason in problem.message
    assert problem.help == "pip install --upgrade --force-reinstall kt-toy"


def test_a_target_that_needs_torch_names_the_extra(tmp_path, child):
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from kt_core.registry.registry import Registry
registry = Registry.discover({"KT_PLUGINS": ""})
try:
    registry.load_target(registry.kernel("KLinearTorch").spec)
except Exception as error:
    print(error)
"""
    done = child("-c", code)
    assert done.stdout.startswith('KT220 "kt_core.torch_linear" needs torch')
    assert 'help: pip install "kt-core[torch]"' in done.stdout


def test_a_spec_of_another_registry_is_refused(registry):
    with pytest.raises(PluginError) as caught:
        registry.load_target(kernel_spec("kt_other.linear"))
    assert caught.value.code == "KT215"


def test_records_and_specs_can_be_kept_in_sets(registry):
    found = registry.kernel("Toy")
    assert len({found, registry.kernel("kt_toy.linear")}) == 1
    assert len({*registry.plugins}) == 1
    assert {Accepted("x"): 1}[Accepted("x")] == 1
