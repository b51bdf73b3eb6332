"""Values: bit for bit those of the gguf package, and torch tensors without detour or alias."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest

from kt_core.errors import WeightsError
from kt_core.weights import DEQUANTIZABLE, LAYOUTS, PLAIN, PackedTensor, QuantType
from kt_core.weights.dequantize import _SLICE, _STAGE

# Of the types kt knows, those of the installed gguf.
BLOCKS = [
    kind
    for kind in QuantType
    if kind in DEQUANTIZABLE - PLAIN and kind in gguf.GGMLQuantizationType.__members__
]
UNSUPPORTED = [kind for kind in QuantType if kind not in DEQUANTIZABLE]


def packed(kind: QuantType, shape: tuple[int, ...], seed: int = 0) -> PackedTensor:
    """A tensor of random bytes, so that every code, NaN and infinity occurs."""
    layout = LAYOUTS[kind]
    width = shape[-1] // layout.block_size * layout.block_bytes
    data = np.random.default_rng(seed).integers(0, 256, (*shape[:-1], width), np.uint8)
    if kind is QuantType.BOOL:
        data &= 1
    data.flags.writeable = False
    return PackedTensor(f"t.{kind}", shape, kind, data)


def bits(values: np.ndarray) -> np.ndarray:
    """Compare values exactly, a NaN by being one: its payload is the processor's choice."""
    values = np.ascontiguousarray(values)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


@pytest.mark.parametrize("kind", BLOCKS)
def test_equals_gguf_bit_for_bit(kind):
    # More values than a slice holds, in rows that do not divide it.
    columns = LAYOUTS[kind].block_size * 5
    rows = _SLICE // columns + 7
    tensor = packed(kind, (rows, columns))
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(tensor.data, gguf.GGMLQuantizationType[kind])
    values = tensor.dequantize()
    assert values.dtype == np.float32
    assert values.shape == (rows, columns)
    np.testing.assert_array_equal(bits(values), bits(expected))


def test_every_type_gguf_can_do_is_covered():
    for kind in gguf.GGMLQuantizationType:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        try:
            with np.errstate(all="ignore"):
                gguf.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        assert QuantType(kind.name) in DEQUANTIZABLE
        assert LAYOUTS[QuantType(kind.name)].block_size == block


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_unknown_formula_names_tensor_and_type(kind):
    tensor = packed(kind, (2, 256))
    with pytest.raises(WeightsError) as caught:
        tensor.dequantize()
    assert caught.value.code == "KT420"
    assert f'"t.{kind}" is stored as {kind}' in str(caught.value)
    with pytest.raises(WeightsError, match="KT420"):
        tensor.to_torch()


def test_gguf_that_does_not_know_the_type(monkeypatch):
    monkeypatch.setattr(gguf, "GGMLQuantizationType", type("Older", (), {}))
    with pytest.raises(WeightsError, match=r"KT420.*gguf .* does not know the type"):
        packed(QuantType.NVFP4, (2, 256)).dequantize()


def test_gguf_that_has_no_formula(monkeypatch):
    def dequantize(data, number):
        raise NotImplementedError

    monkeypatch.setattr(gguf.quants, "dequantize", dequantize)
    with pytest.raises(WeightsError, match="KT420") as caught:
        packed(QuantType.Q4_0, (2, 256)).to_torch()
    assert "help: pip install --upgrade gguf" in str(caught.value)


NUMPY = {
    QuantType.F32: np.float32,
    QuantType.F16: np.float16,
    QuantType.F64: np.float64,
    QuantType.I8: np.int8,
    QuantType.I16: np.int16,
    QuantType.I32: np.int32,
    QuantType.I64: np.int64,
    QuantType.U8: np.uint8,
    QuantType.U16: np.uint16,
    QuantType.U32: np.uint32,
    QuantType.U64: np.uint64,
    QuantType.BOOL: np.bool_,
}


@pytest.mark.parametrize("kind", NUMPY)
def test_plain_types_to_float32(kind):
    tensor = packed(kind, (3, 1000))
    with np.errstate(all="ignore"):
        expected = tensor.data.view(NUMPY[kind]).astype(np.float32)
        values = tensor.dequantize()
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (QuantType.BF16, "bfloat16"),
        (QuantType.F8_E4M3, "float8_e4m3fn"),
        (QuantType.F8_E5M2, "float8_e5m2"),
        (QuantType.F8_E8M0, "float8_e8m0fnu"),
    ],
)
def test_small_floats_equal_torch(kind, dtype):
    torch = pytest.importorskip("torch")
    every = np.arange(65536 if kind is QuantType.BF16 else 256)
    data = every.astype("<u2" if kind is QuantType.BF16 else "u1").view(np.uint8)
    tensor = PackedTensor("t", (len(every),), kind, data)
    expected = torch.from_numpy(data.copy()).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(bits(tensor.dequantize()), bits(expected))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (kind, shape)
        for kind in (QuantType.F32, QuantType.BF16, QuantType.Q8_0)
        for shape in [(), (1,), (0,), (3, 0), (0, 32), (2, 3, 32), (2, 1, 2, 64)]
        if kind in PLAIN or (shape and shape[-1] % 32 == 0)
    ],
)
def test_shapes(kind, shape):
    torch = pytest.importorskip("torch")
    if shape:
        tensor = packed(kind, shape)
    else:
        tensor = PackedTensor("s", (), kind, np.ones(LAYOUTS[kind].block_bytes, np.uint8))
    values = tensor.dequantize()
    assert values.shape == shape
    result = tensor.to_torch(torch.float32)
    assert tuple(result.shape) == shape
    np.testing.assert_array_equal(bits(result.numpy()), bits(values))


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_to_torch_keeps_plain_bits(kind):
    torch = pytest.importorskip("torch")
    tensor = packed(kind, (5, 70_001))
    result = tensor.to_torch()
    assert result.element_size() == LAYOUTS[kind].block_bytes
    np.testing.assert_array_equal(result.view(torch.uint8).numpy(), tensor.data)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", [*sorted(PLAIN), *BLOCKS])
def test_to_torch_converts_as_torch_does(kind, dtype):
    torch = pytest.importorskip("torch")
    target = getattr(torch, dtype)
    tensor = packed(kind, (3, 256 * 400))
    result = tensor.to_torch(target)
    assert result.dtype is target
    if kind in PLAIN:
        expected = tensor.to_torch().to(target)
    else:
        expected = torch.from_numpy(tensor.dequantize()).to(target)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("kind", [QuantType.F32, QuantType.I8, QuantType.BOOL, QuantType.Q8_0])
def test_to_torch_across_stages(kind):
    torch = pytest.importorskip("torch")
    rows = _STAGE // 4096 * 2 + 3
    tensor = packed(kind, (rows, 4096))
    result = tensor.to_torch(torch.bfloat16)
    expected = torch.from_numpy(tensor.dequantize()).to(torch.bfloat16)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())


def test_to_torch_never_aliases():
    pytest.importorskip("torch")
    for kind in (QuantType.F32, QuantType.I64, QuantType.U8, QuantType.BOOL, QuantType.Q4_0):
        tensor = packed(kind, (2, 32))
        before = tensor.data.copy()
        result = tensor.to_torch()
        assert result.data_ptr() != tensor.data.ctypes.data
        result.zero_()
        np.testing.assert_array_equal(tensor.data, before)


def test_a_bool_byte_other_than_one_is_true():
    torch = pytest.importorskip("torch")
    tensor = PackedTensor("b", (3,), QuantType.BOOL, np.array([0, 1, 7], np.uint8))
    assert tensor.to_torch().tolist() == [False, True, True]
    assert tensor.to_torch().view(torch.uint8).tolist() == [0, 1, 1]
    assert tensor.dequantize().tolist() == [0, 1, 1]


def test_to_torch_on_meta():
    torch = pytest.importorskip("torch")
    result = packed(QuantType.Q4_0, (2, 32)).to_torch(torch.bfloat16, "meta")
    assert result.is_meta
    assert tuple(result.shape) == (2, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [QuantType.F16, QuantType.BF16, QuantType.Q4_K, QuantType.BOOL])
def test_to_torch_on_a_gpu(kind):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    tensor = packed(kind, (3, 256 * 9000))
    for dtype in (None, torch.float16):
        result = tensor.to_torch(dtype, "cuda")
        expected = tensor.to_torch(dtype)
        assert result.device.type == "cuda"
        assert torch.equal(result.cpu().nan_to_num(), expected.nan_to_num())


def test_rows_and_unstack():
    tensor = packed(QuantType.Q4_K, (4, 6, 512))
    whole = tensor.dequantize()
    assert tensor.row_bytes == 288
    part = tensor.rows(slice(1, 3))
    assert part.shape == (2, 6, 512)
    assert np.shares_memory(part.data, tensor.data)
    np.testing.assert_array_equal(bits(part.dequantize()), bits(whole[1:3]))
    stepped = tensor.rows(slice(None, None, -2))
    np.testing.assert_array_equal(bits(stepped.dequantize()), bits(whole[::-2]))
    chosen = tensor.rows(np.array([3, 0, 3]))
    np.testing.assert_array_equal(bits(chosen.dequantize()), bits(whole[[3, 0, 3]]))
    experts = tensor.unstack()
    assert [e.shape for e in experts] == [(6, 512)] * 4
    np.testing.assert_array_equal(bits(experts[2].dequantize()), bits(whole[2]))


def test_unaligned_data_of_a_file():
    raw = np.frombuffer(b"x" + np.arange(8, dtype=np.float32).tobytes(), np.uint8)[1:]
    tensor = PackedTensor("t", (8,), QuantType.F32, raw)
    np.testing.assert_array_equal(tensor.dequantize(), np.arange(8))
    if "torch" in sys.modules:
        assert tensor.to_torch().tolist() == list(range(8))


@pytest.mark.parametrize("kind", ["Q4_K", "F16"])
def test_peak_memory_is_near_the_result(kind):
    """16 M values to bfloat16 (32 MiB): a whole float32 copy (64 MiB) must never exist."""
    pytest.importorskip("torch")
    script = """
import sys
from pathlib import Path
import numpy as np, torch, gguf
from kt_core.weights import LAYOUTS, PackedTensor, QuantType

def memory(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024

kind = QuantType(sys.argv[1])
layout = LAYOUTS[kind]
width = 4096 // layout.block_size * layout.block_bytes
PackedTensor("w", (1, 4096), kind, np.zeros((1, width), np.uint8)).to_torch(torch.bfloat16)
tensor = PackedTensor("t", (4096, 4096), kind, np.zeros((4096, width), np.uint8))
tensor.data.sum()
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
result = tensor.to_torch(torch.bfloat16)
print(memory("VmHWM") - before - result.nbytes)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, kind], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 20 << 20
