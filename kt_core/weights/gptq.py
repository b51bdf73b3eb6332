"""GPTQ and AWQ checkpoints in safetensors: four tensors of a linear become one in Q4_1.

Facts of the two layouts, for a linear of K inputs and N outputs in groups along K: both keep 4-bit
values in int32, and ``scales`` ``(groups, N)``; a weight is ``(q - zero) * scale``. AutoGPTQ packs
``qweight`` ``(K / 8, N)`` eight values along K, lowest bits first, and ``qzeros`` ``(groups, N / 8)`` along
N, each one less than the zero point (``checkpoint_format: gptq_v2`` stores it as it is). AutoAWQ packs
``qweight`` ``(K, N / 8)`` and ``qzeros`` along N, in the order 0 2 4 6 1 3 5 7.

Q4_1 is ``d * q + m`` for 32 values: q stays what it is, ``d`` is the scale and ``m = -zero * scale``, rounded
to float16. So every kernel that takes Q4_1 takes these checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kt_core.weights import strict_json
from kt_core.weights.files import WeightFile
from kt_core.weights.filesource import FileSource
from kt_core.weights.tensor import PackedTensor, TensorInfo, packed_shape
from kt_core.weights.text import error, printable
from kt_core.weights.types import LAYOUTS, QuantType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where value i of eight lies
_CONFIGS = ("config.json", "quantize_config.json", "quant_config.json")
_MOST_CONFIG_BYTES = 16 << 20
_BLOCK = LAYOUTS[QuantType.Q4_1].block_size


@dataclass(frozen=True)
class _Linear:
    """One quantised linear: its stored tensors and what was read from their shapes."""

    name: str
    awq: bool
    rows: int
    columns: int
    groups: int
    one_less: bool  # zero points are stored one less than they are


def read_quantised(source: FileSource) -> FileSource:
    """Return ``source`` with each GPTQ or AWQ linear as one tensor ``<name>.weight`` of type Q4_1.

    A source without such tensors comes back as it is. Values are converted when they are asked for.

    Raises:
        WeightsError: KT456 for more or fewer than 4 bits, reordered rows (``desc_act``), groups that are
            not multiples of 32, or shapes that disagree.
    """
    names = [name[: -len(".qweight")] for name in source.tensors if name.endswith(".qweight")]
    if not names:
        return source
    try:
        config = _config(source.path)
        one_less = config.get("checkpoint_format") != "gptq_v2"
        linears = [_linear(source, name, one_less) for name in names]
    except BaseException:
        source.close()
        raise
    replaced: dict[str, tuple[TensorInfo, Callable[[], PackedTensor]]] = {}
    for linear in linears:
        stored = source.tensors[f"{linear.name}.qweight"]
        shape = (linear.rows, linear.columns)
        size = packed_shape(shape, QuantType.Q4_1)
        info = replace(
            stored,
            name=f"{linear.name}.weight",
            shape=shape,
            type=QuantType.Q4_1,
            nbytes=size[0] * size[1],
        )
        replaced[stored.name] = (info, _reader(source, linear, info))
    gone = [f"{n}.{part}" for n in names for part in ("qzeros", "scales", "g_idx")]
    source.replace_tensors(replaced, gone)
    return source


def _config(path: str) -> Mapping[str, Any]:
    """Return what the folder's configuration says about quantising; refuse what cannot be read."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in _CONFIGS:
        place = os.path.join(folder, name)
        if not os.path.isfile(place):
            continue
        file = WeightFile(place)
        try:
            content = strict_json.parse(file.read(0, min(file.size, _MOST_CONFIG_BYTES)))
        except strict_json.JsonError as cause:
            raise _refused(place, f"{cause}") from cause
        finally:
            file.close()
        if isinstance(content, dict) and name == "config.json":
            content = content.get("quantization_config")
        if not isinstance(content, dict):
            continue
        bits = content.get("bits", content.get("w_bit", 4))
        if bits != 4:
            raise _refused(place, f"{bits} bits for each weight; kt reads 4")
        if content.get("desc_act") is True and content.get("group_size") != -1:
            raise _refused(place, "rows are reordered by activation (desc_act)")
        return content
    return {}


def _linear(source: FileSource, name: str, one_less: bool) -> _Linear:
    parts = {}
    for part, kinds in (
        ("qweight", (QuantType.I32,)),
        ("qzeros", (QuantType.I32,)),
        ("scales", (QuantType.F16, QuantType.BF16, QuantType.F32)),
    ):
        info = source.tensors.get(f"{name}.{part}")
        if info is None or len(info.shape) != 2 or info.type not in kinds:
            found = "absent" if info is None else f"{info.type} {list(info.shape)}"
            raise _refused(source.path, f"{printable(name)}.{part} is {found}")
        parts[part] = info.shape
    (first, second), (groups, rows) = parts["qweight"], parts["scales"]
    awq = second != rows
    columns = first if awq else first * 8
    good = (
        groups > 0
        and (second * 8 if awq else second) == rows
        and parts["qzeros"] == (groups, rows // 8)
        and rows % 8 == 0
        and columns % groups == 0
        and columns // groups % _BLOCK == 0
    )
    if not good:
        shapes = ", ".join(f"{part} {list(shape)}" for part, shape in parts.items())
        raise _refused(source.path, f"{printable(name)}: {shapes}")
    return _Linear(name, awq, rows, columns, groups, one_less and not awq)


def _reader(source: FileSource, linear: _Linear, info: TensorInfo) -> Callable[[], PackedTensor]:
    def read() -> PackedTensor:
        data = _convert(linear, source)
        return PackedTensor(info.name, info.shape, info.type, data)

    return read


def _convert(linear: _Linear, source: FileSource) -> Bytes:
    import numpy as np

    size = linear.columns // linear.groups
    order = source.stored(f"{linear.name}.g_idx")
    if order is not None:
        natural = np.arange(linear.columns) // size
        if not np.array_equal(np.ravel(order.data).view("<i4"), natural):
            raise _refused(source.path, f"rows of {printable(linear.name)} are reordered (g_idx)")

    def part(name: str) -> PackedTensor:
        found = source.stored(f"{linear.name}.{name}")
        if found is None:  # it was there when the source was opened
            raise _refused(source.path, f"{printable(linear.name)}.{name} is absent")
        return found

    def nibbles(tensor: PackedTensor) -> Bytes:
        """``(a, b, 8)`` values of ``(a, b)`` words, lowest bits first."""
        words = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(*tensor.shape, 4)
        return np.stack((words & 15, words >> 4), axis=-1).reshape(*tensor.shape, 8)

    values, zeros = nibbles(part("qweight")), nibbles(part("qzeros"))
    if linear.awq:
        q = values[..., _AWQ_ORDER].reshape(linear.columns, linear.rows).T
        zeros = zeros[..., _AWQ_ORDER]
    else:
        q = values.transpose(1, 0, 2).reshape(linear.rows, linear.columns)
    zero = zeros.reshape(linear.groups, linear.rows).astype(np.float32) + linear.one_less
    d = part("scales").dequantize()
    m = -(zero * d)
    blocks = linear.columns // _BLOCK
    each = blocks // linear.groups
    out = np.empty((linear.rows, blocks, 20), np.uint8)
    for at, entry in ((0, d), (2, m)):
        half = np.repeat(entry.T.astype("<f2"), each, axis=1)
        out[:, :, at : at + 2] = (
            np.ascontiguousarray(half).view(np.uint8).reshape(linear.rows, blocks, 2)
        )
    halves = q.reshape(linear.rows, blocks, 2, 16)
    out[:, :, 4:] = halves[:, :, 0] | (halves[:, :, 1] << 4)
    return out.reshape(linear.rows, blocks * 20)


def _refused(path: str, reason: str) -> Exception:
    return error(
        "KT456",
        path,
        "holds a GPTQ or AWQ checkpoint that kt cannot read",
        facts=(reason,),
        help="use one with 4 bits, groups of 32, 64 or 128 and desc_act false, or a GGUF file",
    )
