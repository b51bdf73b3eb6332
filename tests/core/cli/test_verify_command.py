"""kt verify as a person runs it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch

from kt_core.cli.main import main
from kt_core.operators.torch_linear import TorchLinear
from kt_core.testing.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    file = folder / "tiny.gguf"
    model = write_tiny_llama(file, quantization="Q8_0")
    original = folder / "original"
    model.save_pretrained(original)
    return file, original


def kt(capsys, *args):
    status = main(["verify", *(str(arg) for arg in args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def broken(monkeypatch):
    original = TorchLinear.forward

    def louder(self, x):
        y = original(self, x)
        return y * 2 if self.context.name == "model.layers.1.mlp.up_proj" else y

    monkeypatch.setattr(TorchLinear, "forward", louder)


def test_a_sound_model(tiny, capsys):
    status, out, err = kt(capsys, "--gguf", tiny[0], "--rules", "torch", "--device", "cpu")
    assert (status, err) == (0, "")
    assert "verdict   ok: all" in out
    assert "suspect" not in out


def test_a_broken_one_is_exit_1_and_names_the_module(tiny, capsys, broken):
    status, out, _ = kt(capsys, "--gguf", tiny[0], "--rules", "torch", "--device", "cpu")
    assert status == 1
    assert "because of model.layers.1.mlp.up_proj" in out
    assert "it is 2 times what it should be" in out


def test_json(tiny, capsys, broken):
    words = ("--gguf", tiny[0], "--rules", "torch", "--device", "cpu", "--format", "json")
    status, out, _ = kt(capsys, *words)
    report = json.loads(out)
    assert status == 1
    assert report["verdict"] == "broken"
    assert report["culprits"] == ["model.layers.1.mlp.up_proj"]
    assert report["counts"]["broken"] >= 2
    finding = next(f for f in report["findings"] if f["verdict"] == "broken")
    assert {"module", "what", "relative", "bound", "why", "notes"} <= finding.keys()
    assert len(report["drift"]) == 2


def test_all_modules_and_the_drift_on_request(tiny, capsys):
    words = ("--gguf", tiny[0], "--rules", "torch", "--device", "cpu", "--modules", "--drift")
    status, out, _ = kt(capsys, *words)
    assert status == 0
    assert "model.layers.0.self_attn.q_proj" in out
    assert "layer  prefill" in out


def test_the_original_checkpoint(tiny, capsys, tmp_path):
    file, original = tiny
    words = ("--gguf", file, "--rules", "torch", "--device", "cpu", "--modules")
    status, out, _ = kt(capsys, *words, "--reference", original)
    assert status == 0
    assert "checkpoint" in out
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.zero_()
    other.config.rms_norm_eps = 1e-3
    other.save_pretrained(tmp_path / "other")
    status, out, _ = kt(capsys, *words, "--reference", tmp_path / "other")
    assert status == 1
    assert "weight in the file: not what the checkpoint holds" in out
    assert "rms_norm_eps" in out


def test_strict_fails_on_suspects(tiny, capsys, monkeypatch):
    original = TorchLinear.forward
    monkeypatch.setattr(TorchLinear, "forward", lambda self, x: original(self, x) * 1.0002)
    words = ("--gguf", tiny[0], "--rules", "torch", "--device", "cpu", "--dtype", "float32")
    assert kt(capsys, *words)[0] == 0
    status, out, _ = kt(capsys, *words, "--strict")
    assert status == 1
    assert "verdict   suspect" in out


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 2, "KT725"),
        (["--gguf", "FILE", "--tokens", "1"], 2, "KT700"),
        (["--gguf", "FILE", "-p", "a"], 2, "KT737"),
        (["--gguf", "FILE", "--rules", "/no/such.yaml"], 1, "KT101"),
        (["--gguf", "FILE", "--reference", "/no/such/folder"], 1, "KT4"),
    ],
)
def test_wrong_calls(words, status, says, tiny, capsys):
    words = [str(tiny[0]) if word == "FILE" else word for word in words]
    found, _, err = kt(capsys, *words)
    assert found == status
    assert says in err
