"""The header of one safetensors file, proven against the file.

Source of the format: the safetensors README: a little-endian 64-bit length, that many bytes of JSON
that begin with ``{``, then the data, which the tensors cover without holes or overlaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from kt_core.errors import WeightsError
from kt_core.weights import strict_json
from kt_core.weights.files import WeightFile
from kt_core.weights.sniff import MAX_SAFETENSORS_HEADER, refuse_foreign
from kt_core.weights.tensor import TensorInfo
from kt_core.weights.text import error, printable
from kt_core.weights.types import LAYOUTS, MAX_VALUES, PLAIN, QuantType

_TYPES = {
    str(kind): kind
    for kind in QuantType
    if kind in PLAIN  # safetensors' names for these types are the same
}
_MAX_DIMS = 32  # what numpy 1 can express


@dataclass(frozen=True)
class SafetensorsHeader:
    """``tensors`` in the order of their data, ``metadata`` the texts of ``__metadata__``."""

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]


def read_header(file: WeightFile) -> SafetensorsHeader:
    """Read and prove the header of ``file``; raise ``WeightsError`` for the first thing wrong."""
    refuse_foreign(file, "safetensors")
    length = _read_length(file)
    raw = file.read(8, length)
    if not raw.startswith(b"{"):
        raise _bad_json(file, "does not begin with '{'", 0)
    try:
        content = strict_json.parse(raw)
    except strict_json.JsonError as cause:
        raise _bad_json(file, str(cause), cause.offset) from cause
    metadata = _metadata(file, content.pop("__metadata__", {}))
    data_start = 8 + length
    infos = [_entry(file, raw, name, value, data_start) for name, value in content.items()]
    infos.sort(key=lambda info: (info.offset, info.nbytes))
    _check_cover(file, infos, data_start)
    return SafetensorsHeader(metadata, {info.name: info for info in infos})


def _read_length(file: WeightFile) -> int:
    if file.size < 8:
        raise error(
            "KT408",
            file.path,
            f"the header is cut off: the file ends at byte {file.size}",
            field="header length",
            offset=file.size,
            help="download the file again; the download stopped early",
        )
    length = int.from_bytes(file.read(0, 8), "little")
    left = file.size - 8
    if length > MAX_SAFETENSORS_HEADER:
        message = f"claims a header of {length} bytes; at most {MAX_SAFETENSORS_HEADER} are allowed"
    elif length > left:
        message = f"claims a header of {length} bytes; {left} are left in the file"
    elif length < 2:
        message = f"claims a header of {length} bytes; the shortest is {{}}"
    else:
        return length
    raise error(
        "KT450",
        file.path,
        message,
        field="header length",
        offset=0,
        help="download the file again; if it is no safetensors file, give the right one",
    )


def _bad_json(file: WeightFile, message: str, at: int | None) -> WeightsError:
    return error(
        "KT451",
        file.path,
        f"the header {message}",
        field="header",
        offset=None if at is None else 8 + at,
        help="download the file again and compare its checksum",
    )


def _metadata(file: WeightFile, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return value
    raise error(
        "KT451",
        file.path,
        "__metadata__ must be an object of texts",
        field="__metadata__",
        offset=8,
    )


def _entry(file: WeightFile, raw: bytes, name: str, value: Any, data_start: int) -> TensorInfo:
    shown = printable(name)

    def bad(code: str, message: str, **more: Any) -> WeightsError:
        return error(
            code,
            file.path,
            f'the tensor "{shown}" {message}',
            field=f"tensor {shown}",
            offset=8 + _place_of(raw, name),
            **more,
        )

    if not name:
        raise bad("KT412", "has an empty name")
    if not name.isprintable():
        raise bad("KT412", "has control characters in its name")
    if not isinstance(value, dict):
        raise bad("KT452", "is not described by an object")
    absent = {"dtype", "shape", "data_offsets"} - value.keys()
    if absent:
        raise bad("KT452", f"lacks {', '.join(sorted(absent))}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not _counts(shape):
        raise bad("KT416", "has a shape that is not a list of whole numbers, 0 or more")
    if len(shape) > _MAX_DIMS:
        raise bad("KT416", f"has {len(shape)} dimensions; at most {_MAX_DIMS} are allowed")
    if math.prod(dim or 1 for dim in shape) > MAX_VALUES:
        raise bad("KT416", "has more values than any file can hold")
    if not (_counts(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):
        raise bad("KT452", "has data_offsets that are not two ascending whole numbers")
    kind = _TYPES.get(dtype) if isinstance(dtype, str) else None
    if kind is None:
        raise bad(
            "KT417",
            f"has the type {printable(str(dtype), 40)}, which kt does not know",
            facts=(f"known types: {', '.join(_TYPES)}",),
            help="use a file in another type, or update kt-core",
        )
    nbytes = LAYOUTS[kind].block_bytes * math.prod(shape)
    begin, end = offsets
    if end - begin != nbytes:
        raise bad(
            "KT452", f"needs {nbytes} bytes for {shape} {kind}, but takes {end - begin} of the file"
        )
    return TensorInfo(name, tuple(shape), kind, data_start + begin, nbytes, file.path)


def _place_of(raw: bytes, name: str) -> int:
    """Where the entry of ``name`` begins in the header, 0 if its spelling there is escaped."""
    return max(raw.find(json.dumps(name, ensure_ascii=False).encode(errors="replace")), 0)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(file: WeightFile, infos: list[TensorInfo], data_start: int) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    expected = data_start
    for info in infos:
        if info.offset != expected:
            what = "lies inside an earlier tensor"
            if info.offset > expected:
                what = f"leaves a hole of {info.offset - expected} bytes before it"
            raise error(
                "KT418",
                file.path,
                f'the data of the tensor "{info.name}" {what}',
                field=f"tensor {info.name}",
                offset=info.offset,
                facts=(f"begins at {info.offset - data_start}, expected: {expected - data_start}",),
            )
        expected += info.nbytes
    if expected > file.size:
        raise error(
            "KT419",
            file.path,
            f"the file is cut off: its tensors end at byte {expected}, the file at {file.size}",
            offset=file.size,
            facts=(f"missing: {expected - file.size} bytes",),
            help="download the file again; the download stopped early",
        )
    if expected < file.size:
        raise error(
            "KT453",
            file.path,
            f"{file.size - expected} bytes follow the last tensor; the format allows none",
            offset=expected,
            help="compare the file's checksum with the publisher's",
        )
