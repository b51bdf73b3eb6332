"""What a decoded token must read, which is what decoding cannot be faster than."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kt_core import load
from kt_core.models.binding import ExpertsBinding
from kt_core.plan.model import ModulePlan
from kt_core.runtime.bench import bytes_per_token, decode_floor
from kt_core.testing.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    file = tmp_path_factory.mktemp("floor") / "tiny.gguf"
    write_tiny_llama(file, tied=False)
    return load(file, rules=None, dtype="float32", device="cpu")


def test_a_dense_model_reads_everything_but_the_embedding(tiny):
    everything = sum(p.numel() * 4 for p in tiny.model.parameters())
    embedding = tiny.model.get_input_embeddings().weight.numel() * 4
    assert bytes_per_token(tiny.plan, tiny.model.config) == {"cpu": everything - embedding}


def test_of_routed_experts_the_chosen_ones_count(tiny):
    experts = ModulePlan(
        path="model.layers.0.mlp.experts", class_name="Experts", operator="kt_core.Experts",
        distribution="kt-core", rule=0, place="", device="cpu", out_device=None, kwargs={},
        prefill=None, decode=None, bindings=(), experts=ExpertsBinding((), (), ()), stored=800,
        resident={"cpu": 800},
    )  # fmt: skip
    plan = replace(tiny.plan, modules=(experts,))
    config = SimpleNamespace(num_experts=8, num_experts_per_tok=2)
    assert bytes_per_token(plan, config) == {"cpu": 200}


def test_the_floor_is_bytes_over_bandwidth(tiny):
    floor = decode_floor(tiny, 1)
    speed, needed = floor["read_gb_per_s"]["cpu"], floor["bytes_per_token"]["cpu"]
    assert floor["floor_tokens_per_s"] == pytest.approx(speed * 1e9 / needed)
