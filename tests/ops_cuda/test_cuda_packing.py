"""Taking stored types apart: exactly what ``gguf`` dequantises; quantising floats: bounded, reported."""

from __future__ import annotations

import pytest
import torch
from kt_ops_cuda.checkpoints import from_awq, from_gptq
from kt_ops_cuda.experts import MarlinExperts
from kt_ops_cuda.layout import packed_bytes
from kt_ops_cuda.linear import GgufLinear, MarlinLinear
from kt_ops_cuda.packing import (
    EXACT_FORMATS,
    blocks_of,
    interleave,
    interleave_blocks,
    pack_blocks,
    take_apart,
)
from kt_ops_cuda.plugin import EXACT
from kt_ops_cuda.quantize import compare, quantise
from kt_ops_cuda.reference import dequantize_blocks
from kt_ops_cuda.stored import Policy

from kt_core.errors import KernelError
from kt_core.operators.kernel import ExpertsShape, KernelContext, LinearShape
from kt_core.testing.packed import random_packed
from kt_core.weights import PackedTensor, QuantType, TensorInfo

CPU = torch.device("cpu")


def test_the_registered_types_are_the_exact_ones():
    assert set(EXACT) == {str(t) for t in EXACT_FORMATS}


@pytest.mark.parametrize("stored", EXACT)
def test_blocks_hold_the_values_of_the_file(stored):
    weight = random_packed(QuantType(stored), (70, 768), seed=3)
    blocks = take_apart(torch.from_numpy(weight.data.copy()), weight.type)
    expected = torch.from_numpy(weight.dequantize().copy()).double()
    # Scales are float16 in the file; their products are exact in float64. gguf rounds to float32.
    torch.testing.assert_close(dequantize_blocks(blocks), expected, rtol=3e-7, atol=0)
    packed = pack_blocks(blocks)
    assert packed.numel() == packed_bytes(blocks.fmt, 70, 768)


@pytest.mark.parametrize(("bits", "limit"), [(4, 0.12), (8, 0.008)])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_symmetric_quantising_is_near(bits, group, limit):
    weight = torch.randn(40, 384, generator=torch.Generator().manual_seed(1)) * 0.02
    result = quantise(weight, bits, group, symmetric=True)
    report = compare(result.dequantize(), weight)
    assert 0 < report.relative < limit * (1.5 if group == -1 else 1)
    assert "relative error" in str(report)
    assert torch.equal(dequantize_blocks(blocks_of(result)).float(), result.dequantize())


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_offsets_serve_lopsided_weights(group):
    weight = torch.rand(40, 384, generator=torch.Generator().manual_seed(1)) + 0.5
    plain = compare(quantise(weight, 4, group, symmetric=True).dequantize(), weight)
    lopsided = compare(quantise(weight, 4, group, symmetric=False).dequantize(), weight)
    assert lopsided.relative < plain.relative / 1.5


def test_zeros_stay_zeros():
    result = quantise(torch.zeros(8, 128), 4, 128, symmetric=True)
    assert not result.dequantize().any()


def test_interleaving_weaves_blocks_of_32():
    gate, up = torch.arange(40), torch.arange(100, 140)
    woven = interleave(gate, up)
    assert woven.shape == (128,)
    assert torch.equal(woven[:32], gate[:32])
    assert torch.equal(woven[32:64], up[:32])
    assert torch.equal(woven[64:72], gate[32:])
    assert not woven[72:96].any()
    assert torch.equal(woven[96:104], up[32:])


@pytest.mark.parametrize("stored", ["Q4_K", "Q6_K", "MXFP4"])
def test_woven_blocks_keep_their_values(stored):
    pair = [random_packed(QuantType(stored), (48, 256), seed=s) for s in (1, 2)]
    gate, up = (take_apart(torch.from_numpy(w.data.copy()), w.type) for w in pair)
    values = dequantize_blocks(interleave_blocks(gate, up))
    assert torch.equal(values[:32], dequantize_blocks(gate)[:32])
    assert torch.equal(values[96:112], dequantize_blocks(up)[32:])
    assert not values[80:96].any()


def _layer(symmetric):
    generator = torch.Generator().manual_seed(5)
    rows, columns, group = 48, 256, 128
    q = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.int32)
    zeros = torch.full((2, rows), 8, dtype=torch.int32)
    if not symmetric:
        zeros = torch.randint(1, 16, (2, rows), generator=generator, dtype=torch.int32)
    scales = (torch.rand(2, rows, generator=generator) * 0.02 + 0.001).half()
    spread = torch.arange(columns) // group
    weight = (q - zeros.T[:, spread]) * scales.T.float()[:, spread]
    return q, zeros, scales, weight


def _pack(values, order):
    words = torch.zeros(values.shape[:-1], dtype=torch.int64)
    for place, column in enumerate(order):
        words |= values[..., column].long() << (4 * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_layers_load(symmetric):
    q, zeros, scales, weight = _layer(symmetric)
    qweight = _pack(q.T.reshape(-1, 8, 48).permute(0, 2, 1), range(8))
    qzeros = _pack((zeros - 1).reshape(2, -1, 8), range(8))
    result = from_gptq(qweight, qzeros, scales, torch.arange(256) // 128)
    # An offset is float16: it adds 2^-11 of itself.
    torch.testing.assert_close(result.dequantize(), weight, rtol=0, atol=15 * 0.021 * 2**-11)
    assert result.fmt.name == ("w4_g128" if symmetric else "w4_g128_offset")


@pytest.mark.parametrize("symmetric", [True, False])
def test_awq_layers_load(symmetric):
    q, zeros, scales, weight = _layer(symmetric)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    qweight = _pack(q.T.reshape(256, -1, 8), order)
    qzeros = _pack(zeros.reshape(2, -1, 8), order)
    result = from_awq(qweight, qzeros, scales)
    torch.testing.assert_close(result.dequantize(), weight, rtol=0, atol=15 * 0.021 * 2**-11)


def test_reordered_and_torn_checkpoints_are_refused():
    q, zeros, scales, _ = _layer(True)
    qweight = _pack(q.T.reshape(-1, 8, 48).permute(0, 2, 1), range(8))
    qzeros = _pack((zeros - 1).reshape(2, -1, 8), range(8))
    with pytest.raises(KernelError, match=r"KT558 .*act_order"):
        from_gptq(qweight, qzeros, scales, torch.arange(256) % 2)
    with pytest.raises(KernelError, match=r"KT558 .*disagree"):
        from_gptq(qweight, qzeros, scales[:, :40])
    with pytest.raises(KernelError, match=r"KT558 .*int32"):
        from_gptq(qweight.float(), qzeros, scales)
    with pytest.raises(KernelError, match=r"KT558 .*group size"):
        from_gptq(qweight, qzeros.repeat(8, 1), scales.repeat(8, 1))


def _context(**options):
    return KernelContext("model.layers.0.q", torch.bfloat16, CPU, options)


def _info(type, shape=(48, 512)):
    size = 4 * shape[0] * shape[1]
    return TensorInfo("w", shape, QuantType(type), 0, size)


def test_check_names_types_that_would_be_rounded_twice():
    shape = LinearShape(512, 48)
    assert not MarlinLinear.check(shape, [_info("Q6_K")], _context())
    assert not MarlinLinear.check(shape, [_info("BF16")], _context(group_size=-1))
    (reason,) = MarlinLinear.check(shape, [_info("Q3_K")], _context())
    assert "requantize: true" in reason
    assert not MarlinLinear.check(shape, [_info("Q3_K")], _context(requantize=True))
    (reason,) = MarlinLinear.check(shape, [_info("F16")], _context(num_bits=8, symmetric=False))
    assert "symmetric only" in reason
    (reason,) = GgufLinear.check(shape, [_info("F16")], _context())
    assert "no direct kernel" in reason


def test_check_of_experts_names_sizes():
    shape = ExpertsShape(4096, 1001, 64, 2)
    reasons = MarlinExperts.check(shape, [_info("Q4_K")], _context())
    assert len(reasons) == 2


def test_resident_bytes_are_the_packed_ones():
    weight = random_packed(QuantType.Q4_K, (100, 512), seed=1)
    kernel = MarlinLinear(LinearShape(512, 100), _context())
    kernel.load(weight, torch.zeros(100))
    infos = [_info("Q4_K", (100, 512)), TensorInfo("b", (100,), QuantType.F32, 0, 400)]
    assert MarlinLinear.resident_bytes(kernel.shape, infos, _context()) == kernel.packed_size()


def test_load_reports_what_quantising_cost(caplog):
    weight = random_packed(QuantType.F32, (48, 512), seed=1)
    kernel = MarlinLinear(LinearShape(512, 48), _context())
    with caplog.at_level("INFO", "kt_ops_cuda"):
        kernel.load(weight, None)
    assert kernel.report is not None
    assert 0 < kernel.report.relative < 0.2
    assert "relative error" in caplog.text
    exact = MarlinLinear(LinearShape(512, 48), _context())
    exact.load(random_packed(QuantType.Q6_K, (48, 512), seed=1), None)
    assert exact.report is None


def test_wrong_weights_are_refused():
    kernel = MarlinLinear(LinearShape(512, 48), _context())
    with pytest.raises(KernelError, match=r"KT553"):
        kernel.load(random_packed(QuantType.Q4_K, (64, 512), seed=1), None)
    with pytest.raises(KernelError, match=r"KT553"):
        kernel.load(random_packed(QuantType.Q2_K, (48, 512), seed=1), None)
    with pytest.raises(KernelError, match=r"KT556"):
        kernel.forward(torch.zeros(1, 512, dtype=torch.bfloat16))


def test_activations_are_checked_before_anything_runs():
    kernel = MarlinLinear(LinearShape(512, 48), _context())
    kernel.load(random_packed(QuantType.Q4_K, (48, 512), seed=1), None)
    with pytest.raises(KernelError, match=r"KT552 .*float64"):
        kernel.forward(torch.zeros(1, 512, dtype=torch.float64))
    with pytest.raises(KernelError, match=r"KT552 .*on cpu"):
        kernel.forward(torch.zeros(1, 512, dtype=torch.bfloat16))


def test_policy_defaults_are_the_schema_s():
    from kt_ops_cuda.plugin import kt_register_kernels

    marlin = kt_register_kernels()[0]
    properties = marlin.options_schema["properties"]
    policy = Policy.of({}, exact_only=False)
    for name in ("num_bits", "group_size", "symmetric", "requantize"):
        assert properties[name]["default"] == getattr(policy, name)


def test_packed_tensor_views_are_not_written_to():
    weight = random_packed(QuantType.Q8_0, (32, 64), seed=1)
    weight.data.setflags(write=False)
    take = PackedTensor("w", weight.shape, weight.type, weight.data)
    Policy().blocks(take, CPU)
