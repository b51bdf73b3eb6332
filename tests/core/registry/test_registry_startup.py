"""What discovery costs, and what it must not import."""

from __future__ import annotations

import json

import pytest

from kt_core.testing.registry import write_distribution

PLUGIN = """
from kt_core import Accepted, KernelSpec, OperatorSpec, hookimpl
KT_PLUGIN_API = 1
DEVICE = {{"type": "string", "pattern": "^(cpu|cuda)(:[0-9]+)?$"}}

@hookimpl
def kt_register_operators():
    return [
        OperatorSpec(f"{package}.Op{{i}}", "{package}.ops:Op", "an operator", kwargs_schema={{
            "type": "object", "additionalProperties": False, "properties": {{"device": DEVICE}}}})
        for i in range(4)
    ]

@hookimpl
def kt_register_kernels():
    options = {{"type": "object", "properties": {{"bits": {{"enum": [4, 8]}}}}}}
    return [
        KernelSpec(f"{package}.kernel{{i}}", "{package}.ops:K", "linear", ("cpu",), ("*",), "k",
                   options_schema=options)
        for i in range(4)
    ]

@hookimpl
def kt_probe(spec, env):
    return Accepted()
"""

MEASURE = """
import json, sys, time
import kt_core
start = time.perf_counter()
import pluggy, yaml, jsonschema
libraries = time.perf_counter()
from kt_core.registry.registry import Registry
registry = Registry.discover()
end = time.perf_counter()
json.dump({
    "share": (end - libraries) / (libraries - start),
    "editable": any("editable" in name for name in sys.modules),
    "heavy": [n for n in ("torch", "transformers", "numpy", "gguf") if n in sys.modules],
    "states": {r.name: str(r.state) for r in registry.plugins},
}, sys.stdout)
"""

BUDGET = 0.35
"""Share of the time that the libraries take: 15 ms where they take 44.

``kt-validate`` may take half as long again as importing its libraries; discovery is a part of it.
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in ("one", "two", "three"):
        package = f"kt_{name}"
        write_distribution(
            folder,
            f"kt-{name}",
            plugins={name: f"{package}.plugin"},
            files={f"{package}/plugin.py": PLUGIN.format(package=package)},
        )
    return folder


def test_discovery_is_quick_and_light(site, child):
    # The first run may compile byte code; of the others the best counts, since a busy machine only
    # ever adds. KT_PLUGINS keeps out whatever else is installed here.
    shares = []
    for _ in range(8):
        done = child("-c", MEASURE, path=[site], KT_PLUGINS="one,two,three")
        result = json.loads(done.stdout)
        assert result["heavy"] == []
        ready = [name for name, state in result["states"].items() if state == "ready"]
        assert sorted(ready) == ["kt_core", "one", "three", "two"]
        shares.append(result["share"])
    if result["editable"]:
        pytest.skip("an editable install looks for changes whenever a module is imported")
    assert min(shares) < BUDGET


@pytest.mark.parametrize("command", [("--version",), ("--help",), ("explain", "KT210")])
def test_light_commands_import_no_library(child, command):
    code = (
        "import sys\nfrom kt_core.cli.main import main\n"
        f"main({list(command)!r})\n"
        "print([n for n in ('pluggy', 'yaml', 'jsonschema', 'numpy', 'torch') if n in sys.modules])"
    )
    assert child("-c", code).stdout.splitlines()[-1] == "[]"
