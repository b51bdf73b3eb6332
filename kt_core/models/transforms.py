"""What happens to stored tensors on their way into a parameter.

Where only whole rows move, packed blocks stay packed. Where single values move, plain types stay as
they are and blocks become float32, as does everything where values change.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kt_core.errors import WeightsError
from kt_core.weights import LAYOUTS, PLAIN, PackedTensor, QuantType, TensorInfo

Tensors = Sequence[PackedTensor]


def packed_from_array(name: str, values: np.ndarray[Any, Any]) -> PackedTensor:
    """Wrap float values, any shape, as an F32 tensor."""
    plain = np.ascontiguousarray(values, dtype=np.float32)
    data = plain.view(np.uint8) if plain.ndim else plain.reshape(1).view(np.uint8)
    return PackedTensor(name, plain.shape, QuantType.F32, data)


def _opened(tensors: Tensors) -> tuple[list[np.ndarray[Any, Any]], QuantType]:
    """The values as arrays to rearrange: opaque if all are of one plain type, else float32."""
    kinds = {tensor.type for tensor in tensors}
    if len(kinds) > 1 or not kinds <= PLAIN:
        return [tensor.dequantize() for tensor in tensors], QuantType.F32
    kind = kinds.pop()
    opaque = np.dtype(f"V{LAYOUTS[kind].block_bytes}")
    return [np.ascontiguousarray(t.data).view(opaque).reshape(t.shape) for t in tensors], kind


def _closed(name: str, values: np.ndarray[Any, Any], kind: QuantType) -> PackedTensor:
    """The way back from :func:`_opened`."""
    width = LAYOUTS[kind].block_bytes
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data = flat.reshape(*values.shape[:-1], values.shape[-1] * width)
    return PackedTensor(name, values.shape, kind, data)


def as_is(tensors: Tensors) -> PackedTensor:
    """The single stored tensor, untouched."""
    return tensors[0]


def squeezed(tensors: Tensors, shape: Sequence[int]) -> PackedTensor:
    """The same values where dimensions of size one were dropped or added."""
    (values,), kind = _opened(tensors)
    return _closed(tensors[0].name, values.reshape(tuple(shape)), kind)


def unpermute_rope(tensors: Tensors, heads: int) -> PackedTensor:
    """Undo the row order that llama.cpp's converter gives to rotary q and k of Llama models.

    The file keeps each head's rotary pairs adjacent; transformers wants all first halves before all
    second halves. Only whole rows move, so quantised blocks stay as they are.
    """
    (tensor,) = tensors
    rows = tensor.shape[0]
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)
    return tensor.rows(order)


def subtract_one(tensors: Tensors) -> PackedTensor:
    """Norms that multiply by ``1 + weight`` are stored with the one added."""
    (tensor,) = tensors
    return packed_from_array(tensor.name, tensor.dequantize() - np.float32(1))


def log_of_negative(tensors: Tensors) -> PackedTensor:
    """A decay stored as ``-exp(a)`` back to ``a``."""
    (tensor,) = tensors
    values = tensor.dequantize()
    if not (values < 0).all():
        raise ValueError("a decay must be negative")
    return packed_from_array(tensor.name, np.log(-values))


def concat_rows(tensors: Tensors) -> PackedTensor:
    """Stack along the second-to-last dimension (expert ``gate`` over ``up``).

    Types may differ; then, and only then, the result is float32.
    """
    axis = len(tensors[0].shape) - 2
    first = tensors[0]
    if len({tensor.type for tensor in tensors}) == 1:
        data = np.concatenate([tensor.data for tensor in tensors], axis=axis)
        shape = list(first.shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        return PackedTensor(first.name, tuple(shape), first.type, data)
    return packed_from_array(
        first.name, np.concatenate([tensor.dequantize() for tensor in tensors], axis=axis)
    )


def stack(tensors: Tensors) -> PackedTensor:
    """Put per-expert tensors behind one leading dimension."""
    first = tensors[0]
    if len({tensor.type for tensor in tensors}) == 1:
        data = np.stack([tensor.data for tensor in tensors])
        return PackedTensor(first.name, (len(tensors), *first.shape), first.type, data)
    return packed_from_array(first.name, np.stack([tensor.dequantize() for tensor in tensors]))


def stack_gate_up(tensors: Tensors) -> PackedTensor:
    """Per-expert ``gate_0 … gate_n, up_0 … up_n`` as one ``(experts, gate + up, in)`` tensor."""
    half = len(tensors) // 2
    return concat_rows([stack(tensors[:half]), stack(tensors[half:])])


def transposed(tensors: Tensors) -> PackedTensor:
    """Swap the last two dimensions."""
    (values,), kind = _opened(tensors)
    return _closed(tensors[0].name, values.swapaxes(-1, -2), kind)


def alternate(tensors: Tensors) -> PackedTensor:
    """``gate`` and ``up`` as one tensor whose last dimension alternates between the two."""
    pair, kind = _opened(tensors)
    values = np.stack(pair, axis=-1)
    return _closed(tensors[0].name, values.reshape(*values.shape[:-2], -1), kind)


def alternate_columns(tensors: Tensors) -> PackedTensor:
    """``gate`` and ``up`` ``(experts, out, in)`` as columns in turn, ``(experts, in, 2 out)``."""
    return alternate([transposed([tensor]) for tensor in tensors])


def join_kv_b(tensors: Tensors, heads: int) -> PackedTensor:
    """MLA's ``kv_b_proj`` from the two parts that newer files hold.

    ``k_b`` is ``(heads, rank, nope)``, transposed for the absorbed form; ``v_b`` is
    ``(heads, value, rank)``; some converters write the first two dimensions as one. The result is
    ``(heads * (nope + value), rank)``.
    """
    pair, kind = _opened(tensors)
    key, value = (values.reshape(heads, -1, values.shape[-1]) for values in pair)
    joined = np.concatenate([key.swapaxes(1, 2), value], axis=1)
    return _closed(tensors[0].name, joined.reshape(-1, joined.shape[-1]), kind)


def join_qkvz(tensors: Tensors, key_heads: int, key_dim: int, value_dim: int) -> PackedTensor:
    """Qwen3-Next's ``in_proj_qkvz`` from ``qkv`` (all q, all k, all v rows) and ``z``.

    transformers keeps the four parts of each key head together; ``value_dim`` counts the value rows
    of one key head. Only whole rows move.
    """
    parts = (key_dim, key_dim, value_dim, value_dim)
    starts = np.cumsum([0, *(key_heads * part for part in parts[:-1])])
    order = np.concatenate(
        [
            start + head * part + np.arange(part)
            for head in range(key_heads)
            for start, part in zip(starts, parts, strict=True)
        ]
    )
    return concat_rows(tensors).rows(order)


class Moves(enum.Enum):
    """What a transform does to values, and thereby which stored types survive it."""

    ROWS = "rows"
    VALUES = "values"
    CHANGES = "changes"


@dataclass(frozen=True)
class Transform:
    """``run`` and what the plan may know of the result beforehand.

    ``same_shape``: the stored shape must be the parameter's; otherwise only the number of values
    must agree.
    """

    run: Callable[..., PackedTensor]
    moves: Moves
    same_shape: bool = False


TRANSFORMS: dict[str, Transform] = {
    "alternate": Transform(alternate, Moves.VALUES),
    "alternate_columns": Transform(alternate_columns, Moves.VALUES),
    "as_is": Transform(as_is, Moves.ROWS, same_shape=True),
    "concat_rows": Transform(concat_rows, Moves.ROWS),
    "join_kv_b": Transform(join_kv_b, Moves.VALUES),
    "join_qkvz": Transform(join_qkvz, Moves.ROWS),
    "log_of_negative": Transform(log_of_negative, Moves.CHANGES, same_shape=True),
    "squeezed": Transform(squeezed, Moves.VALUES),
    "stack": Transform(stack, Moves.ROWS),
    "stack_gate_up": Transform(stack_gate_up, Moves.ROWS),
    "subtract_one": Transform(subtract_one, Moves.CHANGES, same_shape=True),
    "transposed": Transform(transposed, Moves.VALUES),
    "unpermute_rope": Transform(unpermute_rope, Moves.ROWS, same_shape=True),
}
"""By the name a :class:`~kt_core.models.binding.Binding` uses."""


def result_type(name: str, infos: Sequence[TensorInfo]) -> QuantType:
    """The type that :func:`apply` will return for tensors of these types."""
    kinds = {info.type for info in infos}
    moves = TRANSFORMS[name].moves
    if len(kinds) > 1 or moves is Moves.CHANGES or (moves is Moves.VALUES and not kinds <= PLAIN):
        return QuantType.F32
    return kinds.pop()


def apply(name: str, tensors: Tensors, args: Mapping[str, Any]) -> PackedTensor:
    """Run one transform; shapes or values that do not fit raise ``WeightsError`` KT462."""
    try:
        return TRANSFORMS[name].run(tensors, **args)
    except (ValueError, IndexError) as error:
        raise WeightsError.of(
            "KT462",
            f"{', '.join(tensor.name for tensor in tensors)} cannot be brought into shape ({name})",
            facts=[
                *(f"{t.name}: {list(t.shape)} {t.type}" for t in tensors),
                f"cause: {error}",
            ],
            help="the file does not fit its own metadata; get it again",
        ) from error
