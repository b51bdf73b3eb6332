"""Layer-wise prefill: one layer's prefill kernels at a time, each loaded once per prompt."""

from __future__ import annotations

import sys

import pytest
import torch

from kt_core import KernelSpec, hookimpl, load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators import plugin as core_plugin
from kt_core.operators.torch_linear import TorchLinear
from kt_core.registry.registry import Registry
from kt_core.runtime.load import prepare
from kt_core.testing.tiny import write_tiny_llama

LAYERS, LINEARS, THRESHOLD = 3, 7, 12
TOLERANCE = 1e-5

RULES = f"""
- match: {{name: '^model\\.layers\\.\\d+\\.', class: torch.nn.Linear}}
  replace:
    class: kt_core.Linear
    kwargs: {{prefill_op: late.prefill, generate_op: kt_core.torch_linear}}
- match: {{name: ^model$}}
  replace:
    class: ktransformers.operators.models.KLlamaModel
    kwargs: {{per_layer_prefill_intput_threshold: {THRESHOLD}}}
"""


class PrefillLinear(TorchLinear):
    alive = 0
    most = 0
    loads = 0
    calls = 0

    def load(self, weight, bias):
        super().load(weight, bias)
        cls = PrefillLinear
        cls.alive += 1
        cls.loads += 1
        cls.most = max(cls.most, cls.alive)

    def __del__(self):
        PrefillLinear.alive -= hasattr(self, "weight")

    def forward(self, x):
        PrefillLinear.calls += 1
        return super().forward(x)


class LatePlugin:
    KT_PLUGIN_API = 1
    __name__ = "late"

    @staticmethod
    @hookimpl
    def kt_register_kernels():
        return [
            KernelSpec(
                name="late.prefill",
                target=f"{__name__}:PrefillLinear",
                kind="linear",
                devices=("cpu",),
                weight_formats=("*",),
                summary="counts how many of it there are",
            )
        ]


@pytest.fixture
def layerwise(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[PrefillLinear.__module__])
    rules, file = tmp_path / "rules.yaml", tmp_path / "tiny.gguf"
    rules.write_text(RULES)
    original = write_tiny_llama(file, layers=LAYERS)
    registry = Registry.of(core_plugin, LatePlugin())
    loaded = load(file, rules=rules, dtype="float32", device="cpu", registry=registry)
    for name in ("alive", "most", "loads", "calls"):
        monkeypatch.setattr(PrefillLinear, name, 0)
    return loaded, original


def within(found, expected):
    limit = TOLERANCE * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=limit)


def test_nothing_is_loaded_before_a_long_prompt_comes(layerwise):
    loaded, original = layerwise
    ids = torch.arange(3, 3 + THRESHOLD)[None]
    with torch.inference_mode():
        expected = original(ids).logits
    within(forward_logits(loaded.model, ids, dynamic_cache(loaded.model), keep=0), expected)
    assert (PrefillLinear.loads, PrefillLinear.calls) == (0, 0)


def test_a_long_prompt_has_one_layer_s_kernels_at_a_time(layerwise):
    loaded, original = layerwise
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        expected = original(ids).logits
    within(forward_logits(loaded.model, ids, dynamic_cache(loaded.model), keep=0), expected)
    assert PrefillLinear.loads == PrefillLinear.calls == LAYERS * LINEARS
    assert PrefillLinear.most == LINEARS
    assert PrefillLinear.alive == 0


def test_a_prompt_in_chunks_loads_each_layer_once(layerwise):
    loaded, original = layerwise
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        expected = original.generate(ids, max_new_tokens=6, do_sample=False)
    result = loaded.generate(ids, 6, chunk_size=20)
    assert result.tokens == expected[0, 57:].tolist()[: len(result.tokens)]
    assert PrefillLinear.loads == LAYERS * LINEARS
    assert PrefillLinear.calls == 3 * LAYERS * LINEARS
    assert PrefillLinear.most == LINEARS


def test_kernels_are_let_go_when_a_layer_fails(layerwise):
    loaded, _ = layerwise
    layer = loaded.model.model.layers[1]

    def fail(*_):
        raise ValueError("on purpose")

    layer.mlp.register_forward_hook(fail)
    with pytest.raises(ValueError, match="on purpose"):
        forward_logits(loaded.model, torch.arange(3, 40)[None], dynamic_cache(loaded.model))
    assert PrefillLinear.alive == 0


def test_the_plan_counts_the_largest_layer_once(layerwise, tmp_path):
    loaded, _ = layerwise
    module = loaded.plan.module("model.layers.0.mlp.up_proj")
    one = 64 * 96 * 4
    assert (module.resident, module.streamed) == ({"cpu": one}, {"cpu": one})
    layer = sum(
        sum(m.streamed.values()) for m in loaded.plan.modules if m.path.startswith("model.layers.0")
    )
    assert loaded.plan.streamed == {"cpu": layer}
    resident = sum(sum(m.resident.values()) for m in loaded.plan.modules)
    assert loaded.plan.resident == {"cpu": resident + layer}


def test_without_a_threshold_both_kernels_stay(tmp_path):
    rules, file = tmp_path / "rules.yaml", tmp_path / "tiny.gguf"
    rules.write_text(RULES.replace(f"threshold: {THRESHOLD}", "threshold: 0"))
    write_tiny_llama(file, layers=LAYERS)
    registry = Registry.of(core_plugin, LatePlugin())
    prepared = prepare(file, rules=rules, device="cpu", registry=registry)
    prepared.source.close()
    assert prepared.plan.streamed == {}
    assert prepared.plan.module("model.layers.0.mlp.up_proj").resident == {"cpu": 2 * 64 * 96 * 4}
