"""SmolLM2 as a MoE through kt_ops_cpu in 16-bit activations: logits and answer of the dense model."""

from __future__ import annotations

import pytest

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.registry.registry import default_registry
from kt_core.testing.moe_from_dense import moe_from_dense

pytestmark = pytest.mark.model

# norm(difference) / norm(expected), over all logits of the prompt.
KERNELS = 3e-3
"""Ours against torch on the same file: thirty layers of activations in 16 bits; 0.0007 was measured."""
STORED = {"F16": KERNELS, "Q8_0": 0.06}
"""Against the dense model. In Q8_0 the experts' weights are rounded once more: 0.023 was measured, and
with activations in 8 bits 0.042 to 0.047, which changes the answer."""

SHIPPED = {False: KERNELS, True: 0.05}
"""0.029 was measured with the shipped rules and experts in Q8_0."""


def rules(folder):
    """A rule file as a user writes it."""
    kwargs = """
        generate_device: cpu
        prefill_device: cpu
        generate_op: kt_ops_cpu.{kind}
        prefill_op: kt_ops_cpu.{kind}
        activation_bits: 16"""
    path = folder / "sixteen.yaml"
    path.write_text(
        rf"""
version: 1
rules:
  - match:
      name: \.mlp\.experts$
    replace:
      class: kt_core.Experts
      kwargs:{kwargs.format(kind="experts")}
    recursive: false
  - match:
      name: ^(model\.layers\.|lm_head$)
      class: torch.nn.Linear
    replace:
      class: kt_core.Linear
      kwargs:{kwargs.format(kind="linear")}
"""
    )
    return path


def logits(model, ids):
    return forward_logits(model.model, ids, dynamic_cache(model.model), keep=0)


@pytest.mark.skipif(
    default_registry().kernel("kt_ops_cpu.experts") is None, reason="kt-ops-cpu is not installed"
)
@pytest.mark.parametrize("shipped", [False, True], ids=["sixteen", "shipped"])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("family", "shared"), [("mixtral", 0), ("qwen2_moe", 512)])
def test_smollm2_as_a_moe_answers_as_the_dense_model(
    smollm2, tmp_path, family, shared, stored, shipped
):
    file = tmp_path / "moe.gguf"
    moe_from_dense(smollm2, file, family=family, experts=8, shared=shared, quantization=stored)
    dense = load(smollm2, rules="torch", device="cpu")
    plain = load(file, rules="torch", device="cpu")
    moe = load(file, rules="cpu" if shipped else rules(tmp_path), device="cpu")
    experts = moe.plan.module("model.layers.0.mlp.experts")
    assert experts.prefill.name == experts.decode.name == "kt_ops_cpu.experts"
    assert shipped or experts.prefill.options["activation_bits"] == 16
    ids = dense.prompt("What is the capital of France?")
    wanted, same, actual = logits(dense, ids), logits(plain, ids), logits(moe, ids)
    # The shipped rules take the prompt through the experts in 8 bits, which F16 weights do not feel.
    assert (actual - same).norm() / same.norm() < (KERNELS if stored == "F16" else SHIPPED[shipped])
    assert (actual - wanted).norm() / wanted.norm() < STORED[stored]
    answer = moe.generate(ids, 24)
    assert answer.tokens == dense.generate(ids, 24).tokens
    assert "Paris" in answer.text
