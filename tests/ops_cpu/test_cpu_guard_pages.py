"""Nothing is read or written beyond a buffer: every buffer ends, or begins, at a page that traps.

Each case runs in this process. A fault would end the whole test run, which is as loud as it gets.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.formats import CODEBOOKS, FORMATS
from kt_ops_cpu.library import native, set_variant, variant_names
from kt_ops_cpu.matrices import _set_codebook

from kt_core.weights import LAYOUTS

VARIANTS = variant_names(native())
PAGE = mmap.PAGESIZE
PROT_NONE = 0


class Guarded:
    """Memory between two pages that cannot be touched."""

    def __init__(self, data: bytes, *, at_end: bool) -> None:
        pages = -(-max(len(data), 1) // PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        first = PAGE + (pages * PAGE - len(data) if at_end else 0)
        self._map[first : first + len(data)] = data
        self.address = base + first
        self._view = slice(first, first + len(data))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for page in (base, base + (pages + 1) * PAGE):
            assert protect(page, PAGE, PROT_NONE) == 0

    def read(self) -> bytes:
        return bytes(self._map[self._view])

    def pointer(self, kind="void *"):
        return native().ffi.cast(kind, self.address)


def matrix(packed, memory):
    rows, cols = packed.shape
    return {
        "data": memory.pointer(),
        "rows": rows,
        "cols": cols,
        "row_bytes": packed.row_bytes,
        "type": FORMATS[packed.type],
    }


def sizes(type):
    block = LAYOUTS[type].block_size
    return (1, 31, 33, 270) if block == 1 else (block, 3 * block, 288 if block == 32 else 768)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("type", FORMATS, ids=str)
def test_linear_stays_inside(type, name, at_end, random_packed, restore_variant):
    set_variant(name)
    if type in CODEBOOKS:
        _set_codebook(type)
    module = native()
    for cols in sizes(type):
        for rows in (1, 17, 32):
            packed = random_packed(type, rows, cols)
            weight = Guarded(packed.data.tobytes(), at_end=at_end)
            for tokens in (1, 5):
                values = np.ones((tokens, cols), np.float32)
                x = Guarded(values.tobytes(), at_end=at_end)
                y = Guarded(b"\xff" * (tokens * rows * 4), at_end=at_end)
                bias = Guarded(np.zeros(rows, np.float32).tobytes(), at_end=at_end)
                call = module.ffi.new(
                    "struct kt_cpu_linear *",
                    {
                        "weight": matrix(packed, weight),
                        "bias": bias.pointer("float *"),
                        "x": {"data": x.pointer(), "row_bytes": cols * 4, "dtype": 0},
                        "y": {"data": y.pointer(), "row_bytes": rows * 4, "dtype": 0},
                        "tokens": tokens,
                    },
                )
                assert module.lib.kt_cpu_linear(call) == 0
                result = np.frombuffer(y.read(), np.float32)
                assert np.isfinite(result).all(), "an output was not written"
                assert x.read() == values.tobytes()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [0, 1, 2], ids=["float32", "float16", "bfloat16"])
def test_experts_stay_inside(dtype, name, random_packed, restore_variant):
    set_variant(name)
    module = native()
    ffi = module.ffi
    experts, hidden, inner, tokens, k = 3, 256, 512, 7, 2
    size = 4 if dtype == 0 else 2
    memory = []

    def guarded(data):
        memory.append(Guarded(data, at_end=True))
        return memory[-1]

    layer = {"experts": experts, "act": 0}
    for part, stored, rows, cols in (
        ("gate", "Q4_K", inner, hidden),
        ("up", "Q8_0", inner, hidden),
        ("down", "Q6_K", hidden, inner),
    ):
        packed = [random_packed(stored, rows, cols, e, 0.002) for e in range(experts)]
        data = [guarded(p.data.tobytes()) for p in packed]
        layer[f"{part}_shape"] = matrix(packed[0], data[0])
        array = ffi.new("void const *[]", [d.pointer() for d in data])
        memory.append(array)
        layer[part] = array
    for part, width in (("gate_bias", inner), ("up_bias", inner), ("down_bias", hidden)):
        layer[part] = guarded(np.zeros((experts, width), np.float32).tobytes()).pointer("float *")
    struct = ffi.new("struct kt_cpu_experts_layer *", layer)
    ids = np.tile(np.array([[0, 2], [1, -1]], np.int64), (4, 1))[:tokens]
    y = guarded(b"\xff" * (tokens * hidden * size))
    call = ffi.new(
        "struct kt_cpu_experts *",
        {
            "layer": struct,
            "x": {
                "data": guarded(bytes(tokens * hidden * size)).pointer(),
                "row_bytes": hidden * size,
                "dtype": dtype,
            },
            "y": {"data": y.pointer(), "row_bytes": hidden * size, "dtype": dtype},
            "ids": guarded(ids.tobytes()).pointer("int64_t *"),
            "weights": guarded(np.ones((tokens, k), np.float32).tobytes()).pointer("float *"),
            "tokens": tokens,
            "top_k": k,
        },
    )
    assert module.lib.kt_cpu_experts(call) == 0
    assert y.read() == bytes(tokens * hidden * size)
