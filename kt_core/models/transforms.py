"""What happens to stored tensors on their way into a parameter. Packed blocks stay packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kt_core.errors import WeightsError
from kt_core.weights import PackedTensor, QuantType


def packed_from_array(name: str, values: np.ndarray[Any, Any]) -> PackedTensor:
    """Wrap float values, any shape, as an F32 tensor."""
    plain = np.ascontiguousarray(values, dtype=np.float32)
    data = plain.view(np.uint8) if plain.ndim else plain.reshape(1).view(np.uint8)
    return PackedTensor(name, plain.shape, QuantType.F32, data)


def as_is(tensors: Sequence[PackedTensor]) -> PackedTensor:
    """The single stored tensor, untouched."""
    return tensors[0]


def unpermute_rope(tensors: Sequence[PackedTensor], heads: int) -> PackedTensor:
    """Undo the row order that llama.cpp's converter gives to rotary q and k of Llama models.

    The file keeps each head's rotary pairs adjacent; transformers wants all first halves before all
    second halves. Only whole rows move, so quantised blocks stay as they are.
    """
    (tensor,) = tensors
    rows = tensor.shape[0]
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)
    return tensor.rows(order)


def concat_rows(tensors: Sequence[PackedTensor]) -> PackedTensor:
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


def stack(tensors: Sequence[PackedTensor]) -> PackedTensor:
    """Put per-expert tensors behind one leading dimension."""
    first = tensors[0]
    if len({tensor.type for tensor in tensors}) == 1:
        data = np.stack([tensor.data for tensor in tensors])
        return PackedTensor(first.name, (len(tensors), *first.shape), first.type, data)
    return packed_from_array(first.name, np.stack([tensor.dequantize() for tensor in tensors]))


def stack_gate_up(tensors: Sequence[PackedTensor]) -> PackedTensor:
    """Per-expert ``gate_0 … gate_n, up_0 … up_n`` as one ``(experts, gate + up rows, in)`` tensor."""
    half = len(tensors) // 2
    return concat_rows([stack(tensors[:half]), stack(tensors[half:])])


TRANSFORMS: dict[str, Callable[..., PackedTensor]] = {
    "as_is": as_is,
    "concat_rows": concat_rows,
    "stack": stack,
    "stack_gate_up": stack_gate_up,
    "unpermute_rope": unpermute_rope,
}
"""By the name a :class:`~kt_core.models.binding.Binding` uses."""


def apply(name: str, tensors: Sequence[PackedTensor], args: dict[str, Any]) -> PackedTensor:
    """Run one transform; shapes that do not fit raise ``WeightsError`` KT462."""
    try:
        return TRANSFORMS[name](tensors, **args)
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
