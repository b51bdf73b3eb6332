"""Phases are real: two kernels are resident, and the number of tokens in a call picks one."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from kt_core import KernelSpec, hookimpl, load
from kt_core.operators import plugin as core_plugin
from kt_core.operators.torch_linear import TorchLinear
from kt_core.registry.registry import Registry
from kt_core.testing.tiny import write_tiny_llama

CALLS: Counter[str] = Counter()


class PrefillLinear(TorchLinear):
    def forward(self, x):
        CALLS["prefill"] += 1
        return super().forward(x)


class DecodeLinear(TorchLinear):
    def forward(self, x):
        CALLS["decode"] += 1
        return super().forward(x)


class CountingPlugin:
    KT_PLUGIN_API = 1
    __name__ = "counting"

    @staticmethod
    @hookimpl
    def kt_register_kernels():
        return [
            KernelSpec(
                name=f"counting.{name}",
                target=f"{__name__}:{target}",
                kind="linear",
                devices=("cpu",),
                weight_formats=("*",),
                summary="counts its calls",
            )
            for name, target in (("prefill", "PrefillLinear"), ("decode", "DecodeLinear"))
        ]


@pytest.fixture
def counted(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[PrefillLinear.__module__])
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        """
- match: {name: '^model\\.layers\\.\\d+\\.', class: torch.nn.Linear}
  replace:
    class: kt_core.Linear
    kwargs: {prefill_op: counting.prefill, generate_op: counting.decode}
"""
    )
    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file)
    registry = Registry.of(core_plugin, CountingPlugin())
    loaded = load(file, rules=rules, dtype="float32", device="cpu", registry=registry)
    CALLS.clear()
    return loaded


def test_prefill_and_decode_run_their_own_kernels(counted):
    linears = 2 * 7
    result = counted.generate(torch.arange(3, 23)[None], 5, chunk_size=10)
    steps = len(result.tokens) - 1
    assert CALLS["prefill"] == 2 * linears
    assert CALLS["decode"] == steps * linears


def test_both_kernels_are_loaded_from_the_start(counted):
    layer = counted.model.model.layers[0].mlp.up_proj
    kernels = {type(kernel).__name__ for kernel in layer.kernels.values()}
    assert kernels == {"PrefillLinear", "DecodeLinear"}
    plan = counted.plan.module("model.layers.0.mlp.up_proj")
    assert plan.resident == {"cpu": 2 * 64 * 96 * 4}


def test_one_kernel_in_both_phases_is_held_once(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {match: {class: torch.nn.Linear}, replace: {class: kt_core.Linear}}\n")
    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file)
    loaded = load(file, rules=rules, dtype="float32", device="cpu")
    layer = loaded.model.model.layers[0].mlp.up_proj
    first, second = layer.kernels.values()
    assert first is second
