"""Twelve ways for a plugin to be broken, all installed at once, beside one that works.

Each must be named with its distribution, its version and a way out, and none may keep the others, the
commands or a model from working.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field

import pytest

from kt_core.testing.registry import write_distribution

pytestmark = pytest.mark.slow

HEAD = """
from kt_core import Accepted, KernelSpec, OperatorSpec, Rejected, hookimpl
KT_PLUGIN_API = 1
def kernel(target="{package}.ops:Linear", name="{package}.linear", **more):
    return KernelSpec(name, target, "linear", ("cpu",), ("*",), "a kernel", **more)
"""
REGISTERS = HEAD + "@hookimpl\ndef kt_register_kernels():\n    return [kernel({arguments})]\n"
OPS = """
from kt_core.operators.torch_linear import TorchLinear
class Linear(TorchLinear):
    pass
"""
WRONG_SHAPE = """
from kt_core.operators.torch_linear import TorchLinear
class Linear(TorchLinear):
    def forward(self, x):
        return super().forward(x)[..., :-1]
"""
ILLEGAL = """
import ctypes, mmap, os, platform, signal
def run():
    if platform.machine().lower() not in ("x86_64", "amd64"):
        os.kill(os.getpid(), signal.SIGILL)
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\x0f\\x0b")  # ud2
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(None)(address)()
"""


@dataclass(frozen=True)
class Broken:
    """``code`` and ``says`` are what ``kt plugins`` shows, ``helps`` how the help line begins.

    ``ready`` plugins register; what is wrong with them shows when they are probed or used.
    """

    source: str
    says: tuple[str, ...]
    helps: str
    code: str = "KT211"
    ready: bool = False
    probe: str = ""
    ops: str = OPS
    version: str = "1.0"
    more: dict = field(default_factory=dict)


def registers(arguments: str = "", rest: str = "") -> str:
    return REGISTERS.replace("{arguments}", arguments) + rest


CASES = {
    "import_error": Broken(
        "import a_library_that_is_not_there",
        ("importing kt_import_error.plugin failed", "a_library_that_is_not_there", "plugin.py:1"),
        "pip install --force-reinstall kt-import-error",
    ),
    "wrong_signature": Broken(
        registers(rest="@hookimpl\ndef kt_probe(spec, machine):\n    return Accepted()\n"),
        ("kt_probe takes machine", "kt_probe(spec, env)"),
        "pip install --upgrade kt-wrong-signature",
    ),
    "misspelt_hook": Broken(
        HEAD + "@hookimpl\ndef kt_register_kernel():\n    return [kernel()]\n",
        ('"kt_register_kernel" is not a hook; did you mean "kt_register_kernels"?',),
        "pip install --upgrade kt-misspelt-hook",
    ),
    "wrong_api": Broken(
        "KT_PLUGIN_API = 7",
        ("kt-wrong-api 1.0 speaks plugin API 7", "speaks plugin API 1"),
        "pip install --upgrade kt-core, or a release of kt-wrong-api for plugin API 1",
        code="KT212",
    ),
    "duplicate_name": Broken(
        registers("aliases=('SharedName',)"),
        ('"SharedName" is registered by kt-duplicate-name 1.0 and by kt-other 3.1',),
        "pip uninstall kt-duplicate-name",
        code="KT213",
    ),
    "foreign_prefix": Broken(
        registers("name='kt_core.faster_linear'"),
        (
            '"kt_core.faster_linear" must start with the plugin\'s own package: "kt_foreign_prefix."',
        ),
        "pip install --upgrade kt-foreign-prefix",
    ),
    "missing_library": Broken(
        registers(
            rest="@hookimpl\ndef kt_probe(spec, env):\n"
            "    import ctypes\n    ctypes.CDLL('libthat_is_not_there.so.9')\n"
        ),
        ("its probe failed: OSError: libthat_is_not_there.so.9",),
        "pip install --upgrade kt-missing-library",
        code="KT214",
        ready=True,
    ),
    "illegal_instruction": Broken(
        registers(
            rest="@hookimpl\ndef kt_probe(spec, env):\n"
            "    from {package} import illegal\n    illegal.run()\n"
        ),
        ("its probe killed the process: SIGILL, an illegal instruction",),
        "it is not made for this machine: update it",
        code="KT214",
        ready=True,
        more={"illegal.py": ILLEGAL},
    ),
    "slow_import": Broken(
        "import time\nwhile True:\n    time.sleep(0.01)\n",
        ("importing kt_slow_import.plugin: not done after 2 s", "plugin.py:3"),
        "pip install --upgrade kt-slow-import, or remove it; KT_PLUGIN_TIMEOUT=60",
    ),
    "bad_schema": Broken(
        registers("options_schema={{'type': 'object', 'proprties': {{}}}}"),
        ("options_schema", "proprties", 'did you mean "properties"?'),
        "pip install --upgrade kt-bad-schema",
    ),
    "missing_target": Broken(
        registers("target='{package}.ops:Lniear'"),
        (
            'cannot be loaded from kt_missing_target.ops:Lniear: kt_missing_target.ops has no "Lniear"',
        ),
        "pip install --upgrade --force-reinstall kt-missing-target",
        code="KT216",
        ready=True,
    ),
    "wrong_shape": Broken(
        registers(),
        ("kt_wrong_shape.linear of kt-wrong-shape 1.0 returned", "[1, 10, 63]", "[1, 10, 64]"),
        "pip install --upgrade kt-wrong-shape, or name another kernel",
        code="KT590",
        ready=True,
        ops=WRONG_SHAPE,
    ),
}
USED = [name for name, case in CASES.items() if case.ready]
RULES = """
- match: {{class: torch.nn.Linear}}
  replace: {{class: kt_core.Linear, kwargs: {{generate_op: {package}.linear}}}}
"""


def package_of(name: str) -> str:
    return f"kt_{name}"


def install(folder, name: str, case: Broken) -> None:
    package = package_of(name)
    sources = {"plugin.py": case.source, "ops.py": case.ops, **case.more}
    write_distribution(
        folder,
        package.replace("_", "-"),
        case.version,
        plugins={package: f"{package}.plugin"},
        files={
            f"{package}/{file}": text.format(package=package) if file == "plugin.py" else text
            for file, text in sources.items()
        },
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with all twelve, one rival for the duplicate name, and one plugin that works."""
    folder = tmp_path_factory.mktemp("site")
    for name, case in CASES.items():
        install(folder, name, case)
    install(folder, "other", Broken(registers("aliases=('SharedName',)"), (), "", version="3.1"))
    install(folder, "good", Broken(registers(), (), ""))
    return folder


LIMIT = {"KT_PLUGIN_TIMEOUT": "2"}


@pytest.fixture(scope="module")
def listed(installed, kt):
    """What ``kt plugins --probe`` says, as data."""
    done = kt("plugins", "--probe", "--format", "json", path=[installed], timeout=300, **LIMIT)
    assert done.returncode == 3, done.stderr
    return {record["name"]: record for record in json.loads(done.stdout)}


@pytest.mark.parametrize("name", CASES)
def test_it_is_named_with_version_and_remedy(name, listed):
    case, record = CASES[name], listed[package_of(name)]
    assert record["distribution"] == package_of(name).replace("_", "-")
    assert record["version"] == "1.0"
    if name == "wrong_shape":  # nothing but its results tells
        assert (record["state"], record["code"]) == ("ready", None)
        return
    if case.ready:
        assert record["state"] == "ready"
        (answer,) = [answer for answer in record["probes"] if answer["code"]]
        code, said, helps = answer["code"], " ".join(answer["reasons"]), answer["help"]
    else:
        code = record["code"]
        said, helps = " ".join((record["reason"], *record["facts"])), record["help"]
    assert code == case.code
    for words in case.says:
        assert words in said
    assert helps.startswith(case.helps)


def test_the_others_work(listed):
    for name in ("kt_core", "kt_good"):
        record = listed[name]
        assert record["state"] == "ready"
        assert record["kernels"]
        assert all(answer["accepted"] for answer in record["probes"] if "cpu" in answer["asked"])


def test_the_text_names_them_all(installed, kt):
    done = kt("plugins", path=[installed], **LIMIT)
    assert done.returncode == 3
    for name, case in CASES.items():
        head = next(line for line in done.stdout.splitlines() if line.startswith(package_of(name)))
        assert f"{package_of(name).replace('_', '-')} 1.0" in head
        assert head.endswith("ready") == case.ready


@pytest.mark.parametrize("name", [name for name in CASES if name not in USED])
def test_a_rule_that_wants_it_says_why_not(name, installed, kt, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(package=package_of(name)))
    done = kt("validate", str(rules), path=[installed], **LIMIT)
    case = CASES[name]
    assert done.returncode == 3
    assert case.code in done.stdout + done.stderr
    assert f"{package_of(name).replace('_', '-')} 1.0" in done.stdout + done.stderr
    assert f"help: {case.helps}" in done.stdout + done.stderr


def test_a_rule_for_another_plugin_is_valid(installed, kt, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(package="kt_good"))
    done = kt("validate", "--strict", str(rules), path=[installed], **LIMIT)
    assert (done.returncode, done.stderr) == (0, "")


USE = textwrap.dedent(
    """
    import json, sys
    from kt_core import KtError, load
    import torch
    found = {}
    for name, (file, rules) in json.loads(sys.argv[1]).items():
        try:
            model = load(file, rules=rules, device="cpu")
            found[name] = model.generate(torch.arange(3, 13)[None], 3).tokens
        except KtError as error:
            problem = error.problems[0]
            found[name] = [problem.code, problem.message, *problem.facts, f"help: {problem.help}"]
    json.dump(found, sys.stdout)
    """
)


@pytest.fixture(scope="module")
def used(installed, child, tmp_path_factory, kt_tiny_llama):
    """What comes of a model by a rule for each plugin that registers; the good one's last."""
    asked = {}
    for name in (*USED, "good"):
        rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
        rules.write_text(RULES.format(package=package_of(name)))
        asked[name] = (str(kt_tiny_llama()), str(rules))
    done = child("-c", USE, json.dumps(asked), path=[installed], timeout=300, **LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", USED)
def test_a_model_that_uses_it_says_why_not(name, used):
    case = CASES[name]
    code, message, *rest = used[name]
    assert code == case.code
    assert f"{package_of(name).replace('_', '-')} 1.0" in message
    for words in case.says:
        assert words in " ".join((message, *rest))
    assert rest[-1].startswith(f"help: {case.helps}")


def test_another_model_answers(used):
    assert len(used["good"]) == 3


def test_the_contract_finds_the_wrong_shape(installed, child):
    code = "from kt_core.testing import check_kernel; check_kernel('kt_wrong_shape.linear', tolerance=1)"
    done = child("-c", code, path=[installed], KT_PLUGINS="kt-wrong-shape", timeout=300)
    assert done.returncode == 1
    assert "kt_wrong_shape.linear fails" in done.stderr
    assert "cases of its contract" in done.stderr
