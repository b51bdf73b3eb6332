"""Each transform against the plain operation it stands for, and the types it promises to keep."""

from __future__ import annotations

import numpy as np
import pytest

from kt_core.errors import WeightsError
from kt_core.models.transforms import TRANSFORMS, apply, packed_from_array, result_type
from kt_core.testing.packed import random_packed
from kt_core.weights import QuantType, TensorInfo

PLAIN = (QuantType.F32, QuantType.F16, QuantType.BF16)
PACKED = (QuantType.Q8_0, QuantType.Q4_K, QuantType.MXFP4)

HEADS, RANK, NOPE, VALUE = 2, 256, 256, 8

# Shapes of what goes in, arguments, and the operation on float32 arrays.
CASES = {
    "alternate": (
        [(3, 256), (3, 256)],
        {},
        lambda a, b: np.stack([a, b], -1).reshape(3, 512),
    ),
    "alternate_columns": (
        [(3, 4, 256), (3, 4, 256)],
        {},
        lambda a, b: np.stack([a.swapaxes(1, 2), b.swapaxes(1, 2)], -1).reshape(3, 256, 8),
    ),
    "as_is": ([(4, 256)], {}, lambda a: a),
    "concat_rows": (
        [(3, 4, 256), (3, 5, 256)],
        {},
        lambda a, b: np.concatenate([a, b], 1),
    ),
    "join_kv_b": (
        [(HEADS, RANK, NOPE), (HEADS, VALUE, RANK)],
        {"heads": HEADS},
        lambda k, v: np.concatenate([np.concatenate([k[h].T, v[h]]) for h in range(HEADS)]),
    ),
    "join_qkvz": (
        [(2 * 3 + 2 * 3 + 2 * 5, 256), (2 * 5, 256)],
        {"key_heads": 2, "key_dim": 3, "value_dim": 5},
        lambda qkv, z: np.concatenate(
            [
                part[head * rows : (head + 1) * rows]
                for head in range(2)
                for part, rows in ((qkv[:6], 3), (qkv[6:12], 3), (qkv[12:], 5), (z, 5))
            ]
        ),
    ),
    "log_of_negative": ([(6,)], {}, lambda a: np.log(-a)),
    "squeezed": ([(4, 256)], {"shape": [4, 1, 256]}, lambda a: a[:, None]),
    "stack": ([(4, 256)] * 3, {}, lambda *each: np.stack(each)),
    "stack_gate_up": (
        [(4, 256)] * 6,
        {},
        lambda *each: np.stack([np.concatenate([each[i], each[i + 3]]) for i in range(3)]),
    ),
    "subtract_one": ([(256,)], {}, lambda a: a - np.float32(1)),
    "transposed": ([(3, 4, 256)], {}, lambda a: a.swapaxes(1, 2)),
    "unpermute_rope": (
        [(16, 256)],
        {"heads": 2},
        lambda a: np.concatenate([a[0:8:2], a[1:8:2], a[8:16:2], a[9:16:2]]),
    ),
}


def test_every_transform_has_a_case():
    assert CASES.keys() == TRANSFORMS.keys()


@pytest.mark.parametrize(
    "kinds", [(k,) for k in PLAIN + PACKED] + [(QuantType.Q8_0, QuantType.F16)]
)
@pytest.mark.parametrize("name", CASES)
def test_transform(name, kinds):
    shapes, args, operation = CASES[name]
    if name == "log_of_negative" and kinds[0] in PACKED:
        pytest.skip("vectors are never packed")
    tensors = [
        random_packed(kinds[i % len(kinds)], shape, seed=i, scale=0.1)
        for i, shape in enumerate(shapes)
    ]
    if name == "log_of_negative":
        values = -np.abs(tensors[0].dequantize()) - 1
        tensors = [packed_from_array("a", values)]
    expected = operation(*(tensor.dequantize() for tensor in tensors))
    infos = [TensorInfo(t.name, t.shape, t.type, 0, t.nbytes) for t in tensors]
    found = apply(name, tensors, args)
    assert found.shape == expected.shape
    assert found.type == result_type(name, infos)
    np.testing.assert_array_equal(found.dequantize(), expected)
    if TRANSFORMS[name].same_shape:
        assert found.shape == tensors[0].shape


@pytest.mark.parametrize(
    ("name", "shapes", "args"),
    [
        ("unpermute_rope", [(10, 4)], {"heads": 3}),
        ("concat_rows", [(2, 4, 4), (3, 4, 4)], {}),
        ("join_kv_b", [(2, 3, 4), (2, 5, 6)], {"heads": 2}),
        ("join_qkvz", [(4, 8), (2, 8)], {"key_heads": 2, "key_dim": 3, "value_dim": 5}),
        ("squeezed", [(4, 4)], {"shape": [3, 5]}),
        ("log_of_negative", [(4,)], {}),
    ],
)
def test_what_does_not_fit_is_named(name, shapes, args):
    tensors = [packed_from_array(f"stored.{i}", np.ones(s)) for i, s in enumerate(shapes)]
    with pytest.raises(WeightsError, match=rf"KT462 stored\.0.*\({name}\)"):
        apply(name, tensors, args)
