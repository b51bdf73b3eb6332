"""Latent attention, overlapped experts and layer-wise prefill on a GPU give the CPU's logits."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from kt_core import KernelSpec, hookimpl, load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators import plugin as core_plugin
from kt_core.operators.moe import MoeBlock
from kt_core.operators.offload import CudaLane, lane_from
from kt_core.operators.torch_experts import TorchExperts
from kt_core.registry.registry import Registry

from .families.gguf_of_model import write_gguf
from .families.tiny_models import CASES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

# float32 on both sides; the GPU's matrix products sum in another order (tf32 is off by default).
TOLERANCE = 2e-4
PATIENCE = 30.0
LENGTH = 40

EXPERTS = """
- match: {{name: '\\.experts$'}}
  replace:
    class: kt_core.Experts
    kwargs: {{generate_device: cpu, prefill_device: {prefill}, generate_op: {decode},
             prefill_op: {op}, out_device: 'cuda:0'}}
  recursive: false
- match: {{name: '\\.mlp$', class: {block}}}
  replace: {{class: kt_core.MoeBlock}}
- match: {{name: '\\.self_attn$'}}
  replace: {{class: kt_core.MlaAttention}}
- match: {{name: '^(?!.*kv_b_proj$)model', class: torch.nn.Linear}}
  replace: {{class: kt_core.Linear}}
- match: {{name: ^model$}}
  replace: {{class: kt_core.DecoderModel, kwargs: {{per_layer_prefill_intput_threshold: {threshold}}}}}
"""
BLOCK = "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE"

SHARED_DONE = threading.Event()


class BesidesExperts(TorchExperts):
    """Computes on the host once the shared experts were started: gives up if nobody does that."""

    def forward(self, *inputs):
        assert threading.current_thread() is not threading.main_thread()
        assert SHARED_DONE.wait(PATIENCE), "the shared experts waited for the routed ones"
        SHARED_DONE.clear()
        return super().forward(*inputs)


class BesidesPlugin:
    KT_PLUGIN_API = 1
    __name__ = "besides_gpu"

    @staticmethod
    @hookimpl
    def kt_register_kernels():
        return [
            KernelSpec(
                name="besides_gpu.experts",
                target=f"{__name__}:BesidesExperts",
                kind="experts",
                devices=("cpu",),
                weight_formats=("*",),
                summary="runs beside its caller",
            )
        ]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    case = next(case for case in CASES if case.id == "deepseek-v3")
    file = tmp_path_factory.mktemp("gpu") / "model.gguf"
    model = case.build()
    write_gguf(model, file, case.gguf, "F32", case.style)
    ids = torch.randint(0, 96, (1, LENGTH), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        logits = model(ids).logits
        tokens = model.generate(ids, max_new_tokens=12, do_sample=False)[0, LENGTH:].tolist()
    return file, ids, logits, tokens


def loaded_by(tmp_path, file, registry=None, **options):
    values = {
        "prefill": "cpu",
        "decode": "kt_core.torch_experts",
        "op": "kt_core.torch_experts",
        "block": BLOCK,
        "threshold": 0,
    }
    rules = tmp_path / "rules.yaml"
    rules.write_text(EXPERTS.format(**values | options))
    return load(file, rules=rules, dtype="float32", device="cuda:0", registry=registry)


def check_equal(loaded, ids, expected):
    limit = TOLERANCE * float(expected.abs().max())
    cache = dynamic_cache(loaded.model)
    found = [forward_logits(loaded.model, ids[:, :30], cache, keep=0).cpu()]
    found += [
        forward_logits(loaded.model, ids[:, at : at + 1], cache).cpu() for at in range(30, LENGTH)
    ]
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=0, atol=limit)


def test_experts_on_the_host_give_the_original(original, tmp_path):
    file, ids, logits, tokens = original
    loaded = loaded_by(tmp_path, file)
    assert isinstance(lane_from(torch.device("cuda:0")), CudaLane)
    for _ in range(5):  # the second time buffers are used again
        check_equal(loaded, ids, logits)
    assert loaded.generate(ids, 12).tokens == tokens


def test_shared_experts_run_while_the_host_computes(original, tmp_path, monkeypatch):
    file, ids, logits, _ = original
    monkeypatch.setitem(sys.modules, __name__, sys.modules[BesidesExperts.__module__])
    registry = Registry.of(core_plugin, BesidesPlugin())
    name = "besides_gpu.experts"
    loaded = loaded_by(tmp_path, file, registry, decode=name, op=name)
    blocks = [module for module in loaded.model.modules() if isinstance(module, MoeBlock)]
    for block in blocks:
        block.shared_experts.register_forward_hook(lambda *_: SHARED_DONE.set())
    SHARED_DONE.clear()
    check_equal(loaded, ids, logits)


def test_latent_attention_on_one_gpu(original, tmp_path):
    file, ids, logits, tokens = original
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {match: {name: '\\.self_attn$'}, replace: {class: kt_core.MlaAttention}}\n")
    loaded = load(file, rules=rules, dtype="float32", device="cuda:0")
    check_equal(loaded, ids, logits)
    assert loaded.generate(ids, 12).tokens == tokens


def test_a_prompt_layer_by_layer_leaves_nothing_on_the_gpu(original, tmp_path):
    file, ids, logits, tokens = original
    loaded = loaded_by(tmp_path, file, prefill="cuda:0", threshold=16)
    assert loaded.plan.streamed["cuda:0"] > 0
    check_equal(loaded, ids, logits)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for chunk in (LENGTH, 17):
        # A captured step would stay, for the next prompt.
        answer = loaded.generate(ids, 12, chunk_size=chunk, use_cuda_graph=False)
        assert answer.tokens == tokens
    assert torch.cuda.memory_allocated() - before < 1 << 20
