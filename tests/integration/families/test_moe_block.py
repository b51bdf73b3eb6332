"""MoE blocks: equal to transformers' own, shared experts computed while routed ones run."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from kt_core import KernelSpec, hookimpl, load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators import plugin as core_plugin
from kt_core.operators.moe import MoeBlock
from kt_core.operators.torch_experts import TorchExperts
from kt_core.registry.registry import Registry
from kt_core.rules.model import Rule, RuleSet

from .gguf_of_model import write_gguf
from .tiny_models import CASES

TOLERANCE = 1e-5
PATIENCE = 20.0

_MODULES = ("deepseek_v2", "deepseek_v3", "glm4_moe", "minimax_m2", "mixtral", "qwen2_moe")
BLOCKS = tuple(
    {
        case.model_type: case
        for case in CASES
        if case.model_type in (*_MODULES, "qwen3_moe", "qwen3_next")
    }.values()
)


def rules_for(model, experts=None):
    """Rules that name the very class of the model's blocks."""
    blocks = {type(m) for m in model.modules() if hasattr(m, "experts") and hasattr(m, "gate")}
    (block,) = blocks
    path = f"{block.__module__}.{block.__qualname__}"
    return RuleSet(
        "<test>",
        (
            Rule(0, r"\.experts$", None, "kt_core.Experts", experts or {}, False, False),
            Rule(1, None, path, "kt_core.MoeBlock", {}, True, False),
        ),
    )


@pytest.fixture(params=BLOCKS, ids=str)
def written(request, tmp_path):
    case = request.param
    model = case.build()
    file = tmp_path / "model.gguf"
    write_gguf(model, file, case.gguf, "F32", case.style)
    return model, file


def prompt(model):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, model.config.vocab_size, (1, 21), generator=generator)


def check_equal(loaded, model):
    ids = prompt(model)
    with torch.inference_mode():
        expected = model(ids).logits
    limit = TOLERANCE * float(expected.abs().max())
    cache = dynamic_cache(loaded)
    prefill = forward_logits(loaded, ids[:, :20], cache, keep=0)
    torch.testing.assert_close(prefill, expected[:, :20], rtol=0, atol=limit)
    step = forward_logits(loaded, ids[:, 20:], cache)
    torch.testing.assert_close(step, expected[:, 20:], rtol=0, atol=limit)


def test_logits_equal_the_original(written):
    model, file = written
    loaded = load(file, rules=rules_for(model), dtype="float32", device="cpu")
    blocks = [m for m in loaded.model.modules() if isinstance(m, MoeBlock)]
    assert blocks
    check_equal(loaded.model, model)


LOG: list[str] = []
SHARED_DONE = threading.Event()


class BesidesExperts(TorchExperts):
    """Computes only after the shared experts have: if nobody runs them meanwhile, it gives up."""

    def submit(self, *inputs):
        LOG.append("submit")
        SHARED_DONE.clear()
        result = []

        def work():
            with torch.inference_mode():
                if SHARED_DONE.wait(PATIENCE):
                    result.append(self.forward(*inputs))

        thread = threading.Thread(target=work)
        thread.start()

        def wait():
            LOG.append("wait")
            thread.join()
            return result[0]

        return wait


class BesidesPlugin:
    KT_PLUGIN_API = 1
    __name__ = "besides"

    @staticmethod
    @hookimpl
    def kt_register_kernels():
        return [
            KernelSpec(
                name="besides.experts",
                target=f"{__name__}:BesidesExperts",
                kind="experts",
                devices=("cpu",),
                weight_formats=("*",),
                summary="runs beside its caller",
            )
        ]


def shared_of(block):
    parts = dict(block.named_children())
    return parts.get("shared_experts") or parts.get("shared_expert")


def test_shared_experts_run_while_routed_ones_do(written, monkeypatch):
    model, file = written
    monkeypatch.setitem(sys.modules, __name__, sys.modules[BesidesExperts.__module__])
    kernel = {"generate_op": "besides.experts", "prefill_op": "besides.experts"}
    registry = Registry.of(core_plugin, BesidesPlugin())
    chosen = rules_for(model, kernel)
    loaded = load(file, rules=chosen, dtype="float32", device="cpu", registry=registry)
    blocks = [m for m in loaded.model.modules() if isinstance(m, MoeBlock)]

    def shared_is_done(*_):
        LOG.append("shared")
        SHARED_DONE.set()

    for block in blocks:
        shared = shared_of(block)
        if shared is None:
            pytest.skip("the family has no shared experts")
        shared.register_forward_hook(shared_is_done)
    LOG.clear()
    check_equal(loaded.model, model)
    expected = ["submit", "shared", "wait"] * (2 * len(blocks))
    assert expected == LOG


def test_routers_stay_as_they_are_in_all_shipped_files(written):
    from kt_core.runtime.load import prepare

    _, file = written
    for variant in ("cpu", "torch"):
        prepared = prepare(file, rules=variant, device="cpu")
        prepared.source.close()
        gates = [m for m in prepared.plan.modules if m.path.endswith((".gate", ".router"))]
        assert gates
        # kt_ops_cpu.Router keeps the weight's dtype; no kernel has it to quantise.
        assert {gate.operator for gate in gates} <= {"default", "kt_ops_cpu.Router"}
        assert not any(gate.decode or gate.prefill for gate in gates)


def test_the_names_that_ktransformers_gave_them():
    registry = Registry.of(core_plugin)
    for name in (
        "KDeepseekV2MoE",
        "KDeepseekV3MoE",
        "KQwen2MoeSparseMoeBlock",
        "KQwen3MoeSparseMoeBlock",
        "KMistralSparseMoEBlock",
    ):
        found = registry.operator(f"ktransformers.operators.experts.{name}")
        assert found.spec.name == "kt_core.MoeBlock"
