"""Whatever is handed over wrongly ends in an error with a code, in Python and at the C interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import KernelContext, LinearShape
from kt_core.weights import PackedTensor, QuantType, TensorInfo

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.library import native
from kt_ops_cpu.linear import CpuLinear

CPU = torch.device("cpu")


def linear(rows=8, cols=256, **options):
    context = KernelContext("layer", torch.float32, CPU, options)
    return CpuLinear(LinearShape(cols, rows), context)


def code_of(function, *args):
    with pytest.raises(KernelError) as caught:
        function(*args)
    return caught.value.code


@pytest.fixture
def loaded(random_packed):
    kernel = linear()
    kernel.load(random_packed("Q4_K", 8, 256), None)
    return kernel


def test_call_before_load():
    assert code_of(linear().forward, torch.zeros(1, 256)) == "KT501"


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 256, dtype=torch.float64),
        torch.zeros(2, 256, dtype=torch.int32),
        torch.zeros(2, 255),
        torch.zeros(()),
        torch.zeros(2, 256, device="meta"),
        torch.zeros(2, 256).to_sparse(),
    ],
    ids=["float64", "int32", "width", "scalar", "meta", "sparse"],
)
def test_unfit_activations(x, loaded):
    assert code_of(loaded.forward, x) == "KT505"


def test_strides_and_empty_inputs(loaded):
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    y = loaded.forward(x)
    assert torch.equal(loaded.forward(x.T.contiguous().T), y)
    assert torch.equal(loaded.forward(torch.stack([x, x], 2)[..., 0]), y)
    assert torch.equal(loaded.forward(x.flip(0)).flip(0), y)
    assert torch.equal(loaded.forward(x[:1].expand(4, 256)), y[:1].expand(4, 8))
    assert loaded.forward(x[:0]).shape == (0, 8)
    assert loaded.forward(torch.zeros(2, 0, 256)).shape == (2, 0, 8)
    assert loaded.forward(x[0]).shape == (8,)


@pytest.mark.parametrize("shape", [(8, 512), (9, 256), (256, 8)])
def test_weight_of_another_shape(shape, random_packed):
    packed = random_packed("Q8_0", shape[0], max(shape[1], 32))
    assert code_of(linear().load, packed, None) == "KT502"


def test_weight_whose_bytes_do_not_match(random_packed):
    packed = random_packed("Q4_K", 8, 256)
    for data in (
        packed.data[:, :-1],
        packed.data[:-1],
        packed.data.astype(np.int8),
        np.repeat(packed.data, 2, 1)[:, ::2],
    ):
        wrong = PackedTensor("w", (8, 256), QuantType.Q4_K, data)
        assert code_of(linear().load, wrong, None) == "KT502"


def test_rows_that_are_no_whole_blocks(random_packed):
    packed = random_packed("Q4_K", 8, 256)
    wrong = PackedTensor("w", (8, 200), QuantType.Q4_K, packed.data)
    assert code_of(linear(8, 200).load, wrong, None) == "KT502"
    info = TensorInfo("blk.0.w", (8, 200), QuantType.Q4_K, 0, 0)
    assert "whole blocks" in CpuLinear.check(LinearShape(200, 8), [info], linear().context)[0]


def test_type_that_is_not_served():
    data = np.zeros((8, 54), np.uint8)
    assert (
        code_of(linear().load, PackedTensor("w", (8, 256), QuantType.TQ1_0, data), None) == "KT513"
    )
    info = TensorInfo("blk.0.w", (8, 256), QuantType.TQ1_0, 0, 0)
    assert "TQ1_0" in CpuLinear.check(LinearShape(256, 8), [info], linear().context)[0]


def test_bias_of_another_shape(random_packed):
    assert code_of(linear().load, random_packed("Q4_K", 8, 256), torch.zeros(7)) == "KT502"


def test_nan_rows_stay_their_own(loaded):
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    clean = loaded.forward(x)
    x[2, 17] = float("nan")
    y = loaded.forward(x)
    assert torch.isnan(y[2]).all()
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(y[others], clean[others])


def test_extreme_activations(loaded, random_packed):
    """Rounding to 8 bits must neither overflow nor divide by nothing at the ends of the range."""
    for value in (0.0, 1e-45, 1e-38, 1e30):
        y = loaded.forward(torch.full((2, 256), value))
        assert torch.isfinite(y).all()
    assert torch.equal(loaded.forward(torch.zeros(1, 256)), torch.zeros(1, 8))


def test_weight_survives_its_owner(random_packed):
    """The kernel keeps what it points to alive."""
    import gc

    kernel = linear()
    kernel.load(random_packed("Q4_K", 8, 256), torch.zeros(8))
    x = torch.ones(1, 256)
    before = kernel.forward(x)
    gc.collect()
    filler = [np.full((8, 144), 255, np.uint8) for _ in range(64)]
    assert torch.equal(kernel.forward(x), before)
    del filler


class TestInterface:
    """The C interface by itself: it checks everything again."""

    def call(self, random_packed, **changes):
        module = native()
        ffi = module.ffi
        packed = random_packed("Q4_K", 8, 512)
        x, y = np.zeros((2, 512), np.float32), np.zeros((2, 8), np.float32)
        fields = {
            "data": ffi.cast("void *", packed.data.ctypes.data),
            "rows": 8,
            "cols": 512,
            "row_bytes": 288,
            "type": 12,
            "x": ffi.cast("void *", x.ctypes.data),
            "x_bytes": 2048,
            "x_dtype": 0,
            "y": ffi.cast("void *", y.ctypes.data),
            "y_bytes": 32,
            "y_dtype": 0,
            "tokens": 2,
        }
        fields |= changes
        weight = {key: fields[key] for key in ("data", "rows", "cols", "row_bytes", "type")}
        call = ffi.new(
            "struct kt_cpu_linear *",
            {
                "weight": weight,
                "x": {
                    "data": fields["x"],
                    "row_bytes": fields["x_bytes"],
                    "dtype": fields["x_dtype"],
                },
                "y": {
                    "data": fields["y"],
                    "row_bytes": fields["y_bytes"],
                    "dtype": fields["y_dtype"],
                },
                "tokens": fields["tokens"],
            },
        )
        return module.lib.kt_cpu_linear(call)

    def test_sound_call(self, random_packed):
        assert self.call(random_packed) == native().lib.KT_CPU_OK

    @pytest.mark.parametrize(
        ("status", "changes"),
        [
            ("ARGUMENT", {"data": 0}),
            ("ARGUMENT", {"x": 0}),
            ("ARGUMENT", {"y": 0}),
            ("ARGUMENT", {"row_bytes": 287}),
            ("ARGUMENT", {"row_bytes": -288}),
            ("ARGUMENT", {"row_bytes": 2**62}),
            ("ARGUMENT", {"x_bytes": 2044}),
            ("ARGUMENT", {"x_bytes": 2**62}),
            ("ARGUMENT", {"y_bytes": -32}),
            ("ARGUMENT", {"y_bytes": 33}),
            ("TYPE", {"type": 4}),
            ("TYPE", {"type": -1}),
            ("TYPE", {"type": 1 << 30}),
            ("TYPE", {"x_dtype": 3}),
            ("TYPE", {"y_dtype": -1}),
            ("SHAPE", {"cols": 300}),
            ("SHAPE", {"cols": 0}),
            ("SHAPE", {"cols": -512}),
            ("SHAPE", {"cols": 2**62}),
            ("SHAPE", {"rows": -1}),
            ("SHAPE", {"rows": 2**62}),
            ("SHAPE", {"tokens": -1}),
            ("SHAPE", {"tokens": 2**62}),
        ],
        ids=str,
    )
    def test_refusals(self, status, changes, random_packed):
        module = native()
        changes = {
            key: module.ffi.NULL if key in ("data", "x", "y") else value
            for key, value in changes.items()
        }
        assert self.call(random_packed, **changes) == getattr(module.lib, f"KT_CPU_{status}")

    def test_null_calls_and_unknown_numbers(self):
        module = native()
        lib, null = module.lib, module.ffi.NULL
        for function in (lib.kt_cpu_linear, lib.kt_cpu_experts, lib.kt_cpu_pool_set):
            assert function(null) == lib.KT_CPU_ARGUMENT
        assert lib.kt_cpu_dequantize(null, null) == lib.KT_CPU_ARGUMENT
        assert lib.kt_cpu_codebook_set(12, null, 0) == lib.KT_CPU_TYPE
        assert lib.kt_cpu_codebook_set(16, null, 2048) == lib.KT_CPU_ARGUMENT
        assert lib.kt_cpu_isa_name(99) == null
        assert lib.kt_cpu_isa_name(-1) == null
        assert lib.kt_cpu_isa_set(99) == lib.KT_CPU_VARIANT
        assert lib.kt_cpu_block_values(-5) == 0
        assert module.ffi.string(lib.kt_cpu_status_text(12345)) == b"unknown status"

    @pytest.mark.parametrize(
        "changes",
        [
            {"threads": 0},
            {"threads": 1025},
            {"nodes": 0},
            {"nodes": 3},
            {"nodes": 17, "threads": 32},
            {"spin_us": -1},
            {"node_of_thread": [0, 2]},
            {"node_of_thread": [0, -1]},
            {"cpu_start": [0, 2, 1]},
        ],
        ids=str,
    )
    def test_bad_placements(self, changes):
        module = native()
        ffi = module.ffi
        fields = {"threads": 2, "nodes": 2, "spin_us": 10} | changes
        for key in ("node_of_thread", "cpu_start"):
            if key in fields:
                fields[key] = ffi.new("int32_t[]", fields[key])
        placement = ffi.new("struct kt_cpu_placement *", fields)
        assert module.lib.kt_cpu_pool_set(placement) == module.lib.KT_CPU_ARGUMENT
