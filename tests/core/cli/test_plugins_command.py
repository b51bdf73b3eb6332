"""``kt plugins``: what is shown of plugins that work and of those that do not."""

from __future__ import annotations

import json

import pytest

from kt_core.cli import exit_codes, main, plugins
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec

GOOD = fake_plugin(
    operators=[operator_spec("kt_toy.Linear", kernel_kind="linear", summary="A toy.")],
    kernels=[kernel_spec("kt_toy.linear", aliases=("Toy",), weight_formats=("Q4_K", "Q8_0"))],
    rules=["kt_toy:rules/toy.yaml"],
    version="2.1",
)
BROKEN = fake_plugin("bad", kernels=[kernel_spec("kt_bad.x", summary="", target="")])


@pytest.fixture
def shown(monkeypatch, capsys):
    def run(*plugins_given, args=()):
        registry = fake_registry(*plugins_given)
        monkeypatch.setattr(plugins, "_loaded", lambda: registry.plugins)
        code = main.main(["plugins", *args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_overview(shown):
    code, out, _ = shown(GOOD)
    assert code == 0
    assert "toy      kt-toy 2.1" in out
    assert "  operators: kt_toy.Linear\n" in out
    assert "  kernels:   kt_toy.linear\n" in out
    assert "  rules:     kt_toy:rules/toy.yaml" in out


def test_a_broken_plugin_is_shown_with_every_fault_and_exits_3(shown):
    code, out, _ = shown(GOOD, BROKEN)
    assert code == exit_codes.INSTALLATION
    head = out.index("broken")
    assert out.index("KT211 kernel 'kt_bad.x': target '' is not of the form") > head
    assert "    kernel 'kt_bad.x': summary must be one line of text" in out
    assert "  help: pip install --upgrade kt-bad, or remove it" in out
    assert "kt_toy.linear" in out


def test_one_plugin_in_full(shown):
    code, out, _ = shown(GOOD, BROKEN, args=["kt-toy"])
    assert code == 0
    assert out.startswith("toy: ready\n  distribution: kt-toy 2.1\n  module: kt_toy.plugin\n")
    for line in (
        "  operator kt_toy.Linear\n    A toy.\n    kernels: linear\n",
        "  kernel kt_toy.linear\n",
        "    weights: Q4_K, Q8_0\n",
        "    devices: cpu\n",
        "    aliases: Toy\n",
    ):
        assert line in out
    assert "bad" not in out


def test_an_unknown_name_is_kt703(shown):
    code, out, err = shown(GOOD, args=["toyy"])
    assert code == exit_codes.USAGE
    assert out == ""
    assert err.startswith('KT703 no plugin "toyy" is installed\n  installed: kt_core, toy\n')
    assert 'help: did you mean "toy"?' in err


def test_json_holds_everything(shown):
    code, out, _ = shown(GOOD, BROKEN, args=["--format", "json"])
    assert code == exit_codes.INSTALLATION
    found = {record["name"]: record for record in json.loads(out)}
    assert list(found) == ["kt_core", "bad", "toy"]
    toy = found["toy"]
    assert (toy["state"], toy["code"], toy["reason"], toy["version"]) == (
        "ready",
        None,
        None,
        "2.1",
    )
    assert toy["kernels"][0]["aliases"] == ["Toy"]
    assert toy["rules"] == ["kt_toy:rules/toy.yaml"]
    assert found["bad"]["code"] == "KT211"
    assert len(found["bad"]["facts"]) == 1


def test_control_characters_of_a_plugin_are_escaped(shown):
    def angry(spec, env):
        return None

    rude = fake_plugin("rude", version="1\x1b[31m", probe=angry)
    _, out, _ = shown(rude)
    assert "\x1b" not in out
    assert "kt-rude 1\\x1b[31m" in out


def test_no_load_names_the_plugins_without_importing_them(capsys):
    assert main.main(["plugins", "--no-load", "--format", "json"]) in (0, exit_codes.INSTALLATION)
    records = json.loads(capsys.readouterr().out)
    core = next(record for record in records if record["name"] == "kt_core")
    assert core["state"] == "not loaded"
    assert core["operators"] == []
