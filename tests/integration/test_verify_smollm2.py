"""kt verify on the real model: sound as it is, and a fault of one of its 211 linears is named."""

from __future__ import annotations

import json

import pytest
import torch

from kt_core.cli.main import main
from kt_core.operators.torch_linear import TorchLinear

pytestmark = pytest.mark.model


def verify(capsys, smollm2, *more):
    words = ("--gguf", smollm2, "--device", "cpu", "--tokens", "12", "--decode", "2")
    status = main(["verify", *words, "--format", "json", *more])
    return status, json.loads(capsys.readouterr().out)


def test_the_shipped_rules_give_the_model(smollm2, capsys):
    status, report = verify(capsys, smollm2, "--rules", "torch")
    assert status == 0
    assert report["verdict"] == "ok"
    assert report["answer"]["same_choice"] == 1.0
    # A model that has learnt English predicts the default prompt far better than guessing.
    assert report["answer"]["reference_loss"] < 0.5 * report["answer"]["chance"]
    assert not any("does not predict" in note for note in report["notes"])
    assert max(layer["prefill"] for layer in report["drift"]) < 1e-3


@pytest.mark.parametrize("fault", ["scale", "rows"])
def test_a_fault_of_one_linear_is_named(smollm2, capsys, monkeypatch, fault):
    path = "model.layers.17.self_attn.k_proj"
    original = TorchLinear.forward

    def wrong(self, x):
        y = original(self, x)
        if self.context.name != path:
            return y
        return y * 1.1 if fault == "scale" else torch.cat([y[..., 8:], y[..., :8]], dim=-1)

    monkeypatch.setattr(TorchLinear, "forward", wrong)
    status, report = verify(capsys, smollm2, "--rules", "torch")
    assert status == 1
    assert report["culprits"] == [path]
