"""From ``kt new-plugin`` to an answer: wheels, a fresh environment, the plugins' own tests, a rule.

What cannot be built here is skipped with the reason; what builds and cannot run says so by its probe.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kt_core.cli.main import main
from kt_core.templates.render import COMPUTES

pytest.importorskip("mesonpy", reason="meson-python builds the plugins")

pytestmark = pytest.mark.slow

COMBINATIONS = [(kind, native) for kind, natives in COMPUTES.items() for native in natives]


def cannot_build(native: str) -> str | None:
    """Why a plugin in this language cannot be built here."""
    if native == "c" and not (shutil.which("cc") or shutil.which("gcc")):
        return "there is no C compiler"
    if native == "cuda" and not shutil.which("nvcc"):
        return "there is no nvcc"
    return None


# experts-cuda is built of the same source as linear-cuda, which takes nvcc long enough once.
BUILT = [
    pair for pair in COMBINATIONS if cannot_build(pair[1]) is None and pair != ("experts", "cuda")
]


@dataclass
class Environment:
    """A virtual environment of its own with the plugins' wheels in it."""

    python: Path
    folder: Path

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KT_", "PYTEST_"))}
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env={**inherited, "PYTHONSAFEPATH": "1", **environ},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def run(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Write, build and install every plugin that can be built here."""
    folder = tmp_path_factory.mktemp("plugins")
    for kind, native in BUILT:
        project = folder / f"kt-toy-{kind}-{native}"
        assert main(["new-plugin", project.name, "--kind", kind, "--native", native,
                     "--output", str(project)]) == 0  # fmt: skip
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    built = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder / "dist")
    run(*pip, *built, *sorted(folder.glob("kt-toy-*")))
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    # torch and kt-core come from the environment that runs this test; only the plugins are new.
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in shared)
    )
    wheels = sorted((folder / "dist").glob("*.whl"))
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", *wheels)
    return Environment(python, folder)


def test_every_plugin_is_ready(environment):
    done = environment.run("-m", "kt_core.cli", "plugins", "--format", "json")
    records = {record["name"]: record for record in json.loads(done.stdout)}
    for kind, native in BUILT:
        record = records[f"kt_toy_{kind}_{native}"]
        assert (record["state"], record["notes"]) == ("ready", []), record


def test_their_own_tests_pass(environment):
    """The tests that authors get, on the wheels: the contract, the reference, a whole model."""
    done = environment.run(
        *("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--import-mode=importlib"),
        *("--rootdir", str(environment.folder)),
        *(str(path) for path in sorted(environment.folder.glob("kt-toy-*/tests"))),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran, computed = done.stdout, [pair for pair in BUILT if pair[1] in ("none", "c")]
    skips = [line for line in ran.splitlines() if line.startswith("SKIPPED")]
    assert all("cannot run on cuda" in line for line in skips), ran
    for kind, native in computed:
        assert not any(f"kt-toy-{kind}-{native}/" in line for line in skips), ran


PLANS = """
import json, sys
from kt_core.runtime.load import prepare
found = {}
for name, (file, device) in json.loads(sys.argv[1]).items():
    prepared = prepare(file, rules=name, device=device, assume_devices=("cuda:0",))
    plan = prepared.plan
    plan.raise_for_errors()
    used = {module.operator for module in plan.modules}
    used |= {chosen.name for module in plan.modules for chosen in (module.prefill, module.decode) if chosen}
    found[name] = sorted(used)
json.dump(found, sys.stdout)
"""


def test_a_rule_uses_it(environment, kt_tiny_llama, kt_tiny_moe):
    """Every plugin's rule file plans a model with what the plugin brings, on a GPU it need not have."""
    wanted = {}
    for kind, native in BUILT:
        file = (kt_tiny_moe if kind == "experts" else kt_tiny_llama)(quantization="Q8_0")
        device = "cuda:0" if native in ("cuda", "triton") else "cpu"
        wanted[f"kt_toy_{kind}_{native}"] = (str(file), device)
    done = environment.run("-c", PLANS, json.dumps(wanted))
    assert done.returncode == 0, done.stdout + done.stderr
    for name, used in json.loads(done.stdout).items():
        kind = name.split("_")[2]
        brings = {"attention": f"{name}.Attention", "rules": "kt_core.torch_linear"}
        assert brings.get(kind, f"{name}.{kind}") in used


@pytest.mark.parametrize("native", ["c", "cuda"])
def test_it_was_built(native):
    """What is missing here shows as a skip with its reason."""
    reason = cannot_build(native)
    if reason is not None:
        pytest.skip(reason)
    assert ("linear", native) in BUILT


def test_a_gpu_that_is_not_there_is_named(environment, kt_tiny_llama):
    """Installed where it cannot run, a plugin is rejected with a reason and harms nobody."""
    name = next((f"kt_toy_{kind}_{native}" for kind, native in BUILT if native == "triton"), None)
    file = kt_tiny_llama(quantization="Q8_0")
    done = environment.run("-m", "kt_core.cli", "plan", "--gguf", str(file), "--rules", str(name))
    if done.returncode == 0:
        pytest.skip("there is a GPU, and the plugin runs on it")
    assert done.returncode in (1, 3)
    assert "KT321" in done.stderr + done.stdout or "KT214" in done.stderr + done.stdout
