"""``KTMoEWrapper``: what code written against kt-kernel finds here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kt_ops_amd_blis.compat import KTMoEWrapper

from kt_core.errors import KernelError, PluginError
from kt_ops_amd_blis import reference

EXPERTS, HIDDEN, INTER, TOP_K = 6, 128, 64, 2
BOUND = 4e-3  # bfloat16 results


@pytest.fixture
def weights():
    random = np.random.default_rng(0)
    shapes = ((EXPERTS, INTER, HIDDEN), (EXPERTS, INTER, HIDDEN), (EXPERTS, HIDDEN, INTER))
    return [torch.from_numpy(random.standard_normal(s).astype(np.float32) * 0.1) for s in shapes]


@pytest.fixture
def routed():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, HIDDEN, generator=generator).bfloat16()
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(9)])
    return x, ids, torch.rand(9, TOP_K, generator=generator)


def wrapper(**options):
    return KTMoEWrapper(3, EXPERTS, TOP_K, HIDDEN, INTER, **options)


def expected(routed, weights, order=None):
    x, ids, scales = routed
    order = list(range(EXPERTS)) if order is None else order
    gate, up, down = (w[order].numpy() for w in weights)
    return reference.experts(x.float().numpy(), ids.numpy(), scales.numpy(), gate, up, down)


def near(actual, wanted):
    actual = actual.float().numpy()
    return np.linalg.norm(actual - wanted) <= BOUND * np.linalg.norm(wanted)


@pytest.mark.usefixtures("blis")
class TestInt8:
    def test_forward(self, weights, routed):
        moe = wrapper()
        moe.load_weights_from_tensors(*weights, torch.arange(EXPERTS))
        result = moe.forward(*routed)
        assert result.dtype == torch.bfloat16
        assert near(result, expected(routed, weights))

    def test_submit_then_sync(self, weights, routed):
        moe = wrapper()
        moe.load_weights_from_tensors(*weights, range(EXPERTS))
        moe.submit_forward(*routed, None)
        with pytest.raises(KernelError, match="under way"):
            moe.submit_forward(*routed)
        assert torch.equal(moe.sync_forward(routed[0], None), moe.forward(*routed))
        with pytest.raises(KernelError, match="no forward pass was submitted"):
            moe.sync_forward()

    def test_an_error_in_the_pass_reaches_the_caller(self, weights, routed):
        moe = wrapper()
        moe.load_weights_from_tensors(*weights, range(EXPERTS))
        moe.submit_forward(routed[0], routed[1] + EXPERTS, routed[2])
        with pytest.raises(KernelError) as caught:
            moe.sync_forward()
        assert caught.value.code == "KT539"
        moe.forward(*routed)

    def test_physical_to_logical_map(self, weights, routed):
        order = [5, 0, 4, 1, 3, 2]
        moe = wrapper()
        moe.load_weights_from_tensors(*weights, torch.tensor(order))
        assert near(moe.forward(*routed), expected(routed, weights, order))
        for wrong in ([0, 1], [*range(5), 6], [-1, *range(5)]):
            with pytest.raises(KernelError, match="the map has"):
                moe.load_weights_from_tensors(*weights, wrong)

    def test_experts_on_the_gpu_add_nothing(self, weights, routed):
        mask = torch.tensor([True, False, False, True, False, False])
        moe = wrapper(gpu_experts_mask=mask)
        moe.load_weights_from_tensors(*weights, range(EXPERTS))
        x, ids, scales = routed
        without = scales.masked_fill(mask[ids], 0)
        assert near(moe.forward(*routed), expected((x, ids, without), weights))

    @pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
    def test_types_of_weights(self, weights, routed, stored):
        moe = wrapper()
        converted = [w.to(stored) for w in weights]
        moe.load_weights_from_tensors(*converted, range(EXPERTS))
        assert near(moe.forward(*routed), expected(routed, [w.float() for w in converted]))

    @pytest.mark.parametrize(
        "pattern",
        [
            ("model.layers.3.mlp.experts.{e}.{p}_proj.weight", ("gate", "up", "down")),
            ("model.layers.3.block_sparse_moe.experts.{e}.{p}.weight", ("w1", "w3", "w2")),
        ],
    )
    def test_load_from_safetensors(self, weights, routed, tmp_path, pattern):
        safetensors = pytest.importorskip("safetensors.torch")
        text, parts = pattern
        tensors = {
            text.format(e=e, p=part): stack[e].contiguous()
            for part, stack in zip(parts, weights, strict=True)
            for e in range(EXPERTS)
        }
        tensors["model.layers.13.mlp.experts.0.gate_proj.weight"] = torch.zeros(1, 1)
        safetensors.save_file(tensors, tmp_path / "model.safetensors")
        moe = wrapper(weight_path=str(tmp_path / "model.safetensors"))
        moe.load_weights(range(EXPERTS))
        assert near(moe.forward(*routed), expected(routed, weights))

    def test_load_from_gguf(self, weights, routed, tmp_path):
        gguf = pytest.importorskip("gguf")
        path = tmp_path / "moe.gguf"
        writer = gguf.GGUFWriter(path, "qwen3moe")
        for part, stack in zip(("gate", "up", "down"), weights, strict=True):
            writer.add_tensor(f"blk.3.ffn_{part}_exps.weight", stack.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        moe = wrapper(weight_path=str(path))
        moe.load_weights(range(EXPERTS))
        assert near(moe.forward(*routed), expected(routed, weights))
        other = KTMoEWrapper(4, EXPERTS, TOP_K, HIDDEN, INTER, weight_path=str(path))
        with pytest.raises(KernelError, match="no experts of layer 4"):
            other.load_weights(range(EXPERTS))

    def test_load_without_a_path(self):
        with pytest.raises(KernelError, match="no weight_path"):
            wrapper().load_weights(range(EXPERTS))

    def test_wrong_mask(self):
        with pytest.raises(KernelError, match="gpu_experts_mask"):
            wrapper(gpu_experts_mask=torch.zeros(5, dtype=torch.bool))


def test_bf16_runs_on_the_core(weights, routed):
    moe = wrapper(method="BF16")
    moe.load_weights_from_tensors(*weights, range(EXPERTS))
    result = moe.forward(*routed).float().numpy()
    wanted = expected(routed, weights)
    # one side in bfloat16, the other in int8
    assert np.linalg.norm(result - wanted) <= 0.03 * np.linalg.norm(wanted)


def test_int4_is_refused_with_the_reason():
    with pytest.raises(KernelError, match="int8 only") as caught:
        wrapper(method="MOE_INT4")
    assert caught.value.code == "KT537"


def test_other_methods_are_listed():
    with pytest.raises(KernelError, match="MOE_INT8, LLAMAFILE, BF16") as caught:
        wrapper(method="AMXINT4")
    assert caught.value.code == "KT547"


def test_llamafile_is_another_distributions(weights):
    from kt_core.registry.registry import default_registry

    if default_registry().kernel("kt_ops_cpu.experts") is not None:
        moe = wrapper(method="LLAMAFILE")
        assert type(moe._kernel).__module__.startswith("kt_ops_cpu")
        return
    with pytest.raises(PluginError, match="kt-ops-cpu") as caught:
        wrapper(method="LLAMAFILE")
    assert caught.value.code == "KT210"
