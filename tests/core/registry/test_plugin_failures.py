"""Broken plugins, as distributions on disk: each is named with its cause and harms no other."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from kt_core.testing.registry import write_distribution

GOOD = """
from kt_core import KernelSpec, hookimpl

KT_PLUGIN_API = 1

@hookimpl
def kt_register_kernels():
    return [KernelSpec("{package}.linear", "{package}.ops:L", "linear", ("cpu",), ("*",), "ok")]
"""

HEAD = """
from kt_core import Accepted, KernelSpec, OperatorSpec, hookimpl
KT_PLUGIN_API = 1
def kernel(name="{package}.linear", target="{package}.ops:Linear", **more):
    return KernelSpec(name, target, "linear", ("cpu",), ("*",), "a kernel", **more)
"""


@dataclass(frozen=True)
class Case:
    source: str
    state: str
    code: str
    says: tuple[str, ...]
    helps: str


CASES = {
    "importerror": Case(
        "import a_module_that_is_not_there",
        "broken",
        "KT211",
        ("ModuleNotFoundError", "a_module_that_is_not_there", "plugin.py:1"),
        "pip install --force-reinstall",
    ),
    "syntaxerror": Case(
        "def broken(:\n    pass", "broken", "KT211", ("SyntaxError", "plugin.py:1"), "pip install"
    ),
    "exits": Case("raise SystemExit(0)", "broken", "KT211", ("SystemExit",), "pip install"),
    "cancelled": Case(
        "import asyncio\nraise asyncio.CancelledError", "broken", "KT211", ("Cancelled",), "pip"
    ),
    "othercore": Case(
        "from kt_core.registry.specs import FutureSpec",
        "broken",
        "KT211",
        ("FutureSpec", "written for another kt-core"),
        "pip install --upgrade kt-core",
    ),
    "hookraises": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    raise RuntimeError('no luck')",
        "broken",
        "KT211",
        ("kt_register_kernels() raised RuntimeError: no luck", "plugin.py:"),
        "pip install --upgrade",
    ),
    "hookexits": Case(
        HEAD + "@hookimpl\ndef kt_register_operators():\n    raise SystemExit('bye')",
        "broken",
        "KT211",
        ("SystemExit",),
        "pip install",
    ),
    "generator": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    yield kernel()\n    raise KeyError('x')",
        "broken",
        "KT211",
        ("KeyError",),
        "pip install",
    ),
    "endless": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    while True:\n        yield kernel()",
        "broken",
        "KT211",
        ("more than 10000 items",),
        "pip install",
    ),
    "signature": Case(
        HEAD + "@hookimpl\ndef kt_probe(spec, environment):\n    return Accepted()",
        "broken",
        "KT211",
        ("kt_probe takes environment", "kt_probe(spec, env)"),
        "pip install",
    ),
    "misspelt": Case(
        HEAD + "@hookimpl\ndef kt_register_kernel():\n    return [kernel()]",
        "broken",
        "KT211",
        ('"kt_register_kernel" is not a hook', 'did you mean "kt_register_kernels"?'),
        "pip install",
    ),
    "wrapper": Case(
        HEAD + "@hookimpl(wrapper=True)\ndef kt_probe():\n    return (yield)",
        "broken",
        "KT211",
        ("kt_probe is a wrapper",),
        "pip install",
    ),
    "noapi": Case(
        "X = 1",
        "incompatible",
        "KT212",
        ("declares no KT_PLUGIN_API", "speaks plugin API 1"),
        "pip install --upgrade",
    ),
    "newapi": Case(
        "KT_PLUGIN_API = 2",
        "incompatible",
        "KT212",
        ("kt-newapi 1.0 speaks plugin API 2", "speaks plugin API 1"),
        "pip install --upgrade kt-core, or a release of kt-newapi for plugin API 1",
    ),
    "oldapi": Case(
        "KT_PLUGIN_API = 0",
        "incompatible",
        "KT212",
        ("kt-oldapi 1.0 speaks plugin API 0",),
        "pip install --upgrade kt-oldapi, or a kt-core that speaks plugin API 0",
    ),
    "boolapi": Case(
        "KT_PLUGIN_API = True", "incompatible", "KT212", ("KT_PLUGIN_API = True",), "pip install"
    ),
    "returnsnone": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    kernel()",
        "broken",
        "KT211",
        ("returned None instead of a list",),
        "pip install",
    ),
    "returnsspec": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    return kernel()",
        "broken",
        "KT211",
        ("returned KernelSpec instead of a list",),
        "pip install",
    ),
    "returnsclass": Case(
        HEAD + "class Linear: pass\n@hookimpl\ndef kt_register_kernels():\n    return [Linear]",
        "broken",
        "KT211",
        ("returned Linear where it must return KernelSpec objects",),
        "pip install",
    ),
    "returnsoperator": Case(
        HEAD
        + "@hookimpl\ndef kt_register_kernels():\n"
        + "    return [OperatorSpec('{package}.x', '{package}.ops:X', 's')]",
        "broken",
        "KT211",
        ("returned a value of type OperatorSpec where it must return KernelSpec",),
        "pip install",
    ),
    "foreignprefix": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    return [kernel('kt_core.mine')]",
        "broken",
        "KT211",
        ('name "kt_core.mine" must start with the plugin\'s own package: "kt_foreignprefix."',),
        "pip install",
    ),
    "corealias": Case(
        HEAD
        + "@hookimpl\ndef kt_register_kernels():\n    return [kernel(aliases=('KLinearTorch',))]",
        "duplicate",
        "KT213",
        ('the kernel name "KLinearTorch" belongs to the core',),
        "pip uninstall kt-corealias",
    ),
    "ourname": Case(
        HEAD
        + "@hookimpl\ndef kt_register_kernels():\n    return [kernel(aliases=('KLinearMarlin',))]",
        "broken",
        "KT211",
        ('alias "KLinearMarlin" is reserved for kt-ops-cuda',),
        "pip install",
    ),
    "badtarget": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    return [kernel(target='not a target')]",
        "broken",
        "KT211",
        ("target 'not a target' is not of the form package.module:Class",),
        "pip install",
    ),
    "badschema": Case(
        HEAD
        + "@hookimpl\ndef kt_register_kernels():\n"
        + "    return [kernel(options_schema={{'type': 'object', 'proprties': {{}}}})]",
        "broken",
        "KT211",
        ("proprties", 'did you mean "properties"?'),
        "pip install",
    ),
    "twonames": Case(
        HEAD + "@hookimpl\ndef kt_register_kernels():\n    return [kernel(), kernel()]",
        "broken",
        "KT211",
        ('both use the name "kt_twonames.linear"',),
        "pip install",
    ),
    "rulesoutside": Case(
        HEAD + "@hookimpl\ndef kt_register_rules():\n    return ['kt_other:x.yaml', '../x.yaml']",
        "broken",
        "KT211",
        ("kt_other:x.yaml", "package:path/inside/it.yaml"),
        "pip install",
    ),
}

SHOW = """
import json, sys
from kt_core.registry.registry import Registry
from kt_core.cli.plugins import as_json
registry = Registry.discover()
json.dump({"plugins": [as_json(r) for r in registry.plugins],
           "modules": sorted(sys.modules)}, sys.stdout)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One folder with every broken plugin in it, and two good ones."""
    folder = tmp_path_factory.mktemp("site")
    sources = {name: case.source for name, case in CASES.items()}
    sources |= {"agood": GOOD, "zgood": GOOD}
    for name, source in sources.items():
        package = f"kt_{name}"
        text = (
            source.replace("{package}", package)
            if "{{" not in source
            else source.format(package=package)
        )
        write_distribution(
            folder,
            f"kt-{name}",
            plugins={name: f"{package}.plugin"},
            files={f"{package}/plugin.py": text},
        )
    return folder


@pytest.fixture(scope="module")
def records(environment, child):
    done = child("-c", SHOW, path=[environment])
    assert done.returncode == 0, done.stderr
    return {record["name"]: record for record in json.loads(done.stdout)["plugins"]}


@pytest.mark.parametrize("name", CASES)
def test_a_broken_plugin_is_named_with_cause_and_remedy(records, name):
    case, record = CASES[name], records[name]
    assert (record["state"], record["code"]) == (case.state, case.code)
    assert (record["distribution"], record["version"]) == (f"kt-{name}", "1.0")
    text = "\n".join([record["reason"], *record["facts"]])
    for words in case.says:
        assert words in text
    assert case.helps in record["help"]


@pytest.mark.parametrize("name", CASES)
def test_a_broken_plugin_leaves_nothing_registered(records, name):
    record = records[name]
    assert record["operators"] == record["kernels"] == record["rules"] == []


@pytest.mark.parametrize("name", ["agood", "zgood", "kt_core"])
def test_the_others_work_whatever_is_broken(records, name):
    assert records[name]["state"] == "ready"
    assert records[name]["kernels"]


def test_kt_plugins_shows_each_and_exits_3(environment, kt):
    done = kt("plugins", path=[environment])
    assert done.returncode == 3
    for name, case in CASES.items():
        assert f"kt-{name} 1.0" in done.stdout
        assert case.code in done.stdout
    assert done.stderr == ""


def test_the_traceback_of_a_failed_import_is_there_for_authors(environment, kt):
    done = kt("-vv", "plugins", "importerror", path=[environment])
    assert "Traceback (most recent call last)" in done.stderr
    assert "import a_module_that_is_not_there" in done.stderr
    assert "Traceback" not in kt("plugins", "importerror", path=[environment]).stderr


def test_what_a_plugin_prints_does_not_spoil_json(tmp_path, kt):
    write_distribution(
        tmp_path,
        "kt-noisy",
        plugins={"noisy": "kt_noisy.plugin"},
        files={"kt_noisy/plugin.py": "print('look at me')\nKT_PLUGIN_API = 1"},
    )
    done = kt("plugins", "noisy", "--format", "json", path=[tmp_path])
    assert json.loads(done.stdout)[0]["state"] == "ready"
    assert "look at me" in done.stderr


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("plugins", "--no-load")])
def test_no_plugin_code_is_imported_for(tmp_path, kt, command):
    """Nothing that a plugin could do at import may stand in the way of these."""
    write_distribution(
        tmp_path,
        "kt-canary",
        plugins={"canary": "kt_canary.plugin"},
        files={"kt_canary/plugin.py": "import os\nos._exit(77)"},
    )
    assert kt(*command, path=[tmp_path]).returncode == 0
    assert kt("plugins", path=[tmp_path]).returncode == 77  # the canary does sing


def test_a_plugin_may_be_an_object_in_a_module(tmp_path, child):
    source = """
from kt_core import KernelSpec, hookimpl
class Plugin:
    KT_PLUGIN_API = 1
    @hookimpl
    def kt_register_kernels(self):
        return [KernelSpec("kt_obj.linear", "kt_obj.ops:L", "linear", ("cpu",), ("*",), "s")]
plugin = Plugin()
"""
    write_distribution(
        tmp_path,
        "kt-obj",
        plugins={"obj": "kt_obj.plugin:plugin", "gone": "kt_obj.plugin:nothing"},
        files={"kt_obj/plugin.py": source},
    )
    done = child("-c", SHOW, path=[tmp_path])
    found = {record["name"]: record for record in json.loads(done.stdout)["plugins"]}
    assert [kernel["name"] for kernel in found["obj"]["kernels"]] == ["kt_obj.linear"]
    assert found["gone"]["state"] == "broken"
    assert "nothing" in found["gone"]["reason"]


def test_unmarked_hooks_and_heavy_imports_are_pointed_out(tmp_path, child):
    source = """
import numpy
KT_PLUGIN_API = 1
def kt_register_kernels():
    return []
"""
    write_distribution(
        tmp_path,
        "kt-notes",
        plugins={"notes": "kt_notes.plugin"},
        files={"kt_notes/plugin.py": source},
    )
    done = child("-c", SHOW, path=[tmp_path])
    record = next(r for r in json.loads(done.stdout)["plugins"] if r["name"] == "notes")
    assert record["state"] == "ready"
    assert "kt_register_kernels is not marked with @kt_core.hookimpl" in record["notes"][0]
    assert "imports numpy at registration" in record["notes"][1]


def test_malformed_and_unreadable_metadata_stops_nothing(tmp_path, child):
    group = "[kt_core.plugins]\n"
    for name, content in {
        "kt-noequals": (group + "just a word\n").encode(),
        "kt-twice": (group + "a = kt_a\na = kt_b\n").encode(),
        "kt-latin": (group + "é = kt_x\n").encode("latin-1"),
    }.items():
        metadata = write_distribution(tmp_path, name, plugins={})
        (metadata / "entry_points.txt").write_bytes(content)
    bare = tmp_path / "kt_bare-2.5.dist-info"
    bare.mkdir()
    (bare / "entry_points.txt").write_text(group + "bare = kt_bare\n")
    (tmp_path / "kt_bare.py").write_text("KT_PLUGIN_API = 1")
    done = child("-c", SHOW, path=[tmp_path])
    found = {record["name"]: record for record in json.loads(done.stdout)["plugins"]}
    assert "'just a word' is not name = module" in found["kt-noequals"]["reason"]
    assert "'a' is declared twice" in found["kt-twice"]["reason"]
    assert "kt_latin-1.0.dist-info: its entry points cannot be read" in done.stderr
    assert (found["bare"]["state"], found["bare"]["version"]) == ("ready", "2.5")
