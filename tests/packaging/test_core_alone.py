"""kt-core without torch: what a CI job or a headless box gets from ``pip install kt-core``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What comes with kt-core[torch] and with the other distributions. The child refuses to import them.
ABSENT = ("torch", "transformers", "tokenizers", "safetensors", "jinja2", "prompt_toolkit")

BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "KT_PLUGINS": ""}
        return subprocess.run(
            [sys.executable, "-m", "kt_core.cli", *args],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )

    return run


def test_the_blocker_blocks(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    code = "import torch"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert run.returncode == 1


def test_rule_files_are_validated(alone, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- match: {class: torch.nn.Linear}\n"
        "  replace: {class: kt_core.Linear, kwargs: {generate_op: KLinearTorch}}\n"
    )
    assert alone("validate", str(rules)).returncode == 0
    rules.write_text("- match: {nmae: x}\n  replace: {class: default}\n")
    result = alone("validate", str(rules))
    assert result.returncode == 1
    assert "rules.yaml:1:11: KT" in result.stdout + result.stderr


def test_files_are_inspected(alone, tmp_path):
    import gguf
    import numpy as np

    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = alone("inspect", str(file))
    assert result.returncode == 0
    assert "token_embd.weight" in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["plugins"],
        ["--help"],
        ["--version"],
        ["explain", "KT210"],
        ["schema", "--with-plugins"],
        ["docs"],
        ["docs", "commands"],
    ],
)
def test_these_need_no_torch(alone, command):
    result = alone(*command)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("command", [["plan", "--gguf", "x"], ["chat", "--gguf", "x", "-p", "hi"]])
def test_what_needs_torch_says_how_to_get_it(alone, command):
    result = alone(*command)
    assert result.returncode == 3
    assert 'pip install "kt-core[torch]"' in result.stderr
    assert "Traceback" not in result.stderr
