"""Aliases, architectures and commands: what plugins may add besides operators, kernels and rules."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

import pytest

from kt_core import AliasSpec, ArchitectureSpec, CommandSpec, load
from kt_core.cli import main as cli
from kt_core.errors import PluginError, WeightsError
from kt_core.models.families.llama import Llama
from kt_core.models.names import stored_names
from kt_core.registry import registry as registry_module
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec
from kt_core.testing.tiny import write_tiny_llama


def reason_of(*plugins):
    registry = fake_registry(*plugins)
    return {r.name: (str(r.state), r.code, r.reason) for r in registry.plugins if r.code}


# Aliases


def test_an_alias_leads_to_what_another_distribution_brings():
    plugin = fake_plugin(aliases=[AliasSpec("AcmeLinear", "kt_core.torch_linear")])
    registry = fake_registry(plugin)
    assert registry.kernel("AcmeLinear").spec.name == "kt_core.torch_linear"
    assert registry.kernel("AcmeLinear", "experts") is None
    assert "AcmeLinear" in registry.kernel_names("linear")
    assert [found.spec.name for found in registry.kernels("linear")] == ["kt_core.torch_linear"]


def test_an_alias_of_an_operator():
    plugin = fake_plugin(aliases=[AliasSpec("acme.Lin", "kt_core.Linear", "operator")])
    assert fake_registry(plugin).operator("acme.Lin").spec.name == "kt_core.Linear"


def test_an_alias_of_something_that_is_missing_says_what():
    plugin = fake_plugin(aliases=[AliasSpec("AcmeMarlin", "kt_ops_cuda.marlin")])
    problem = fake_registry(plugin).unknown("AcmeMarlin", "kernel")
    assert problem.code == "KT210"
    assert problem.facts[0] == '"AcmeMarlin" is a further name of "kt_ops_cuda.marlin"'
    assert problem.help.startswith(
        "pip install "
    )  # --force-reinstall where it is there, but not asked
    assert problem.help.endswith(" kt-ops-cuda")


def test_an_alias_of_an_alias_leads_nowhere_in_any_order():
    aliases = [AliasSpec("A", "B"), AliasSpec("B", "kt_core.torch_linear"), AliasSpec("C", "C")]
    for order in itertools.permutations(aliases):
        registry = fake_registry(fake_plugin(aliases=order))
        assert registry.kernel("A") is None
        assert registry.kernel("B") is not None
        assert registry.unknown("A", "kernel").code == "KT215"
        assert registry.unknown("C", "kernel").code == "KT215"


@pytest.mark.parametrize(
    ("alias", "says"),
    [
        (AliasSpec("KLinearMarlin", "kt_core.torch_linear"), "reserved for kt-ops-cuda"),
        (AliasSpec("kt_ops_cpu.quick", "kt_core.torch_linear"), "reserved for kt-ops-cpu"),
        (AliasSpec("default", "kt_core.Linear", "operator"), "meaning of its own"),
        (AliasSpec("a b", "kt_core.torch_linear"), "not of the form"),
        (AliasSpec("Acme", "no such"), "not the name of an operator or kernel"),
        (AliasSpec("Acme", "kt_core.Linear", "module"), 'what must be "operator" or "kernel"'),
    ],
)  # fmt: skip
def test_aliases_are_checked(alias, says):
    state, code, reason = reason_of(fake_plugin(aliases=[alias]))["toy"]
    assert (state, code) == ("broken", "KT211")
    assert says in reason


def test_the_core_keeps_its_names():
    plugin = fake_plugin(aliases=[AliasSpec("KLinearTorch", "kt_core.torch_linear")])
    state, code, reason = reason_of(plugin)["toy"]
    assert (state, code) == ("duplicate", "KT213")
    assert '"KLinearTorch" belongs to the core' in reason


# Architectures


class ToyLlama(Llama):
    """A Llama under another name, stored under Llama's names."""

    gguf = "toyllama"

    def gguf_names(self, parameter, layers):
        return stored_names("llama", parameter, layers, self.spellings)


@pytest.fixture
def toy_architecture(monkeypatch):
    monkeypatch.setitem(sys.modules, "kt_toy", ModuleType("kt_toy"))
    module = ModuleType("kt_toy.family")
    module.ToyLlama = ToyLlama
    monkeypatch.setitem(sys.modules, "kt_toy.family", module)
    return ArchitectureSpec(
        name="kt_toy.ToyLlama",
        target="kt_toy.family:ToyLlama",
        gguf="toyllama",
        architectures=("ToyLlamaForCausalLM",),
        model_types=("toyllama",),
        summary="A Llama under another name.",
    )


@pytest.fixture
def toy_file(tmp_path):
    """A tiny Llama whose file says that it is of the architecture ``toyllama``."""
    import gguf

    plain, path = tmp_path / "llama.gguf", tmp_path / "toy.gguf"
    write_tiny_llama(plain)
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(path, "toyllama")
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "general.architecture")):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        name = key.replace("llama.", "toyllama.", 1) if key.startswith("llama.") else key
        writer.add_key_value(name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain, path


def test_a_plugin_teaches_kt_a_model_family(toy_architecture, toy_file):
    import torch

    plain, path = toy_file
    registry = fake_registry(fake_plugin(architectures=[toy_architecture]))
    options = {"rules": None, "device": "cpu", "registry": registry}
    ids = torch.arange(3, 13)[None]
    assert (
        load(path, **options).generate(ids, 4).tokens
        == load(plain, **options).generate(ids, 4).tokens
    )


def test_without_the_plugin_the_family_is_unknown(toy_file):
    with pytest.raises(WeightsError, match=r"KT463 .*toyllama"):
        load(toy_file[1], rules=None, device="cpu", registry=fake_registry())


def test_an_adapter_that_is_none_is_named(toy_file, toy_architecture):
    sys.modules["kt_toy.family"].ToyLlama = dict
    registry = fake_registry(fake_plugin(architectures=[toy_architecture]))
    with pytest.raises(
        PluginError, match=r"KT216 .*kt-toy 1\.0.*dict is no kt_core\.models\.family"
    ):
        load(toy_file[1], rules=None, device="cpu", registry=registry)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "kt_core.Toy"}, "must start with the plugin's own package"),
        ({"target": "nowhere"}, "not of the form package.module:Class"),
        ({"gguf": " "}, "gguf must be"),
        ({"architectures": ()}, "architectures must not be empty"),
        ({"summary": ""}, "summary must be one line"),
    ],
)
def test_architectures_are_checked(fields, says):
    base = {"name": "kt_toy.Toy", "target": "kt_toy.f:F", "gguf": "toy", "summary": "A toy."}
    spec = ArchitectureSpec(**{**base, "architectures": ("ToyForCausalLM",), **fields})
    assert says in reason_of(fake_plugin(architectures=[spec]))["toy"][2]


def test_two_plugins_for_one_architecture_get_neither(toy_architecture):
    other = ArchitectureSpec("kt_b.Toy", "kt_b.f:F", "toyllama", ("OtherForCausalLM",), "Another.")
    refused = reason_of(
        fake_plugin(architectures=[toy_architecture]), fake_plugin("b", architectures=[other])
    )
    assert set(refused) == {"toy", "b"}
    assert all(code == "KT213" and "toyllama" in reason for _, code, reason in refused.values())


# Commands


@pytest.fixture
def tune(monkeypatch):
    """A plugin's command in the registry of this process; returns its module."""
    module = ModuleType("kt_toy.tune")
    module.__doc__ = "Measure this machine."
    module.add_arguments = lambda parser: parser.add_argument("--runs", type=int, default=1)
    module.run = lambda args: sys.stdout.write(f"{args.runs} runs\n") and 0
    monkeypatch.setitem(sys.modules, "kt_toy", ModuleType("kt_toy"))
    monkeypatch.setitem(sys.modules, "kt_toy.tune", module)
    plugin = fake_plugin(commands=[CommandSpec("tune-up", "kt_toy.tune", "measure")])
    registry = fake_registry(plugin)
    monkeypatch.setattr(registry_module, "default_registry", lambda: registry)
    return module


def test_a_command_of_a_plugin_runs(tune, capsys):
    assert cli.main(["tune-up", "--runs", "3"]) == 0
    assert capsys.readouterr().out == "3 runs\n"


def test_its_help_and_its_mistakes_are_like_kts_own(tune, capsys):
    assert cli.main(["tune-up", "--help"]) == 0
    assert "Measure this machine." in capsys.readouterr().out
    assert cli.main(["tune-up", "--rusn", "3"]) == 2
    assert "did you mean --runs?" in capsys.readouterr().err


def test_a_misspelt_command_is_suggested(tune, capsys):
    assert cli.main(["tune-pu"]) == 2
    assert "did you mean kt tune-up?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": lambda args: 1 / 0}, "ZeroDivisionError"),
        ({"run": None}, "'NoneType' object is not callable"),
    ],
)
def test_a_command_that_fails_names_its_plugin(tune, capsys, change, says):
    vars(tune).update(change)
    assert cli.main(["tune-up"]) == 3
    said = capsys.readouterr().err
    assert "KT223 kt tune-up, a command of kt-toy 1.0, failed" in said
    assert says in said
    assert "help: pip install --upgrade kt-toy" in said


def test_a_command_without_its_functions(tune, capsys):
    del tune.run
    assert cli.main(["tune-up"]) == 3
    assert "kt_toy.tune has no run" in capsys.readouterr().err


def test_a_command_of_a_refused_plugin_says_why(monkeypatch, capsys):
    plugin = fake_plugin(
        commands=[CommandSpec("tune", "kt_toy.tune", "measure")], kernels=[kernel_spec("kt_core.x")]
    )
    registry = fake_registry(plugin)
    monkeypatch.setattr(registry_module, "default_registry", lambda: registry)
    assert cli.main(["tune"]) == 3
    assert 'KT211 plugin "toy" (kt-toy 1.0) is broken' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (CommandSpec("plan", "kt_toy.plan", "s"), '"kt plan" is a command of kt itself'),
        (CommandSpec("help", "kt_toy.plan", "s"), '"kt help" is a command of kt itself'),
        (CommandSpec("Tune It", "kt_toy.tune", "s"), "not of the form word"),
        (CommandSpec("tune", "kt_other.tune", "s"), "outside the plugin's own package"),
        (CommandSpec("tune", "kt_toy.tune", ""), "summary must be one line"),
    ],
)
def test_commands_are_checked(command, says):
    assert says in reason_of(fake_plugin(commands=[command]))["toy"][2]


def test_kts_own_commands_import_no_plugin(child):
    code = (
        "import sys\nfrom kt_core.cli.main import main\nmain(['--help'])\n"
        "assert 'kt_core.registry.registry' not in sys.modules"
    )
    done = child("-c", code)
    assert done.returncode == 0, done.stderr
    assert "Plugins may add more" in done.stdout


# Order


def test_no_order_of_plugins_changes_anything():
    """Five plugins, some of them at odds, in all 120 orders: the same registry each time."""
    plugins = [
        fake_plugin("a", kernels=[kernel_spec("kt_a.linear", aliases=("Shared",))]),
        fake_plugin("b", kernels=[kernel_spec("kt_b.linear", aliases=("Shared",))]),
        fake_plugin(
            "c", aliases=[AliasSpec("Nick", "kt_d.linear"), AliasSpec("Own", "kt_a.linear")]
        ),
        fake_plugin(
            "d", kernels=[kernel_spec("kt_d.linear")], operators=[operator_spec("kt_d.Op")]
        ),
        fake_plugin("e", commands=[CommandSpec("go", "kt_e.go", "go")], version="2.0"),
    ]

    def state(order):
        registry = fake_registry(*order)
        return (
            [(r.name, r.state, r.code, r.reason, r.facts, r.help) for r in registry.plugins],
            [(name, registry.kernel(name).spec.name) for name in registry.kernel_names()],
            [(name, registry.operator(name).spec.name) for name in registry.operator_names()],
            list(registry.commands()),
            registry.unknown("Shared", "kernel"),
        )

    states = [state(order) for order in itertools.permutations(plugins)]
    assert states.count(states[0]) == 120
    kernels = dict(states[0][1])
    assert kernels["Nick"] == "kt_d.linear"
    assert "Shared" not in kernels
    assert "Own" not in kernels
