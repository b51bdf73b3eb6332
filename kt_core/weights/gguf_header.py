"""The header of one GGUF file, versions 2 and 3, proven against the file before anything is built.

Source of the format: the GGUF specification (ggml, ``docs/gguf.md``); where it is silent the checks
are those of ggml's own reader, in exact integers.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from kt_core.errors import Problem, Severity, WeightsError
from kt_core.weights.cursor import Cursor
from kt_core.weights.files import WeightFile
from kt_core.weights.gguf_metadata import GgufMetadata, read_name
from kt_core.weights.sniff import GGUF_MAGIC, refuse_foreign
from kt_core.weights.tensor import TensorInfo
from kt_core.weights.text import error, printable, problem
from kt_core.weights.types import BY_GGML_NUMBER, LAYOUTS, MAX_VALUES

MAX_NAME = 63
"""Longest tensor name in bytes (ggml keeps names in 64 bytes, the last of them zero)."""

MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24

_LEAST_TENSOR = 8 + 1 + 4 + 4 + 8  # name length, one letter, dimensions, type, offset
_RECORD_TAIL = [struct.Struct("<" + "Q" * dims + "IQ") for dims in range(MAX_DIMS + 1)]


@dataclass(frozen=True)
class GgufHeader:
    """What one file says: ``tensors`` in file order, ``data_start`` in bytes."""

    version: int
    alignment: int
    metadata: GgufMetadata
    tensors: dict[str, TensorInfo]
    data_start: int
    problems: tuple[Problem, ...]


def read_header(file: WeightFile, *, strict: bool = False) -> GgufHeader:
    """Read and prove the header of ``file``.

    Raises ``WeightsError`` for the first thing that is wrong, naming field and byte offset. Bytes
    after the last tensor are a warning among ``problems``, or an error with ``strict``.
    """
    cursor = Cursor(file)
    version = _read_version(cursor)
    cursor.field = "tensor_count"
    tensor_count = cursor.u64()
    cursor.field = "kv_count"
    kv_count = cursor.u64()
    cursor.field = "tensor_count"
    cursor.claim(tensor_count, _LEAST_TENSOR, "tensors")
    metadata = GgufMetadata(file)
    metadata.read_pairs(cursor, kv_count)
    alignment = _alignment(file, metadata)
    cursor.field = "tensor_count"
    cursor.claim(tensor_count, _LEAST_TENSOR, "tensors")
    records = _read_tensors(cursor, tensor_count)
    data_start = _pad(cursor.pos, alignment)
    tensors, end = _place(file, records, data_start, alignment)
    problems = _trailing(file, tensors, max(end, cursor.pos), alignment, strict)
    return GgufHeader(version, alignment, metadata, tensors, data_start, problems)


def _read_version(cursor: Cursor) -> int:
    file = cursor.file
    refuse_foreign(file, "gguf")
    cursor.field = "version"
    cursor.skip(4)
    version = cursor.u32()
    if version in (2, 3):
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, 2, 3):
        raise error(
            "KT409",
            file.path,
            f"is a big-endian GGUF file (version {swapped}); kt reads little-endian files",
            field="version",
            offset=4,
            help="download the little-endian file, or convert it with gguf-convert-endian",
        )
    raise error(
        "KT409",
        file.path,
        f"is GGUF version {version}; kt reads versions 2 and 3",
        field="version",
        offset=4,
        help="convert the model again with a current converter"
        if version == 1
        else "update kt-core, or download the file again and compare its checksum",
    )


def _alignment(file: WeightFile, metadata: GgufMetadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    field = metadata.field(key)
    if field.count is not None or field.type.name != "uint32":
        raise error(
            "KT414",
            file.path,
            f"{key} is {field.type_name}; it must be uint32",
            field=key,
            offset=field.offset,
        )
    value = int(metadata[key])
    if value.bit_count() != 1 or value > MAX_ALIGNMENT:
        raise error(
            "KT414",
            file.path,
            f"{key} is {value}; it must be a power of two up to {MAX_ALIGNMENT}",
            field=key,
            offset=field.offset,
        )
    return value


@dataclass(slots=True)
class _Record:
    """One tensor as its header entry claims it. ``at`` is the byte offset of the entry."""

    index: int
    name: str
    dims: tuple[int, ...]
    type_number: int
    offset: int
    at: int

    @property
    def field(self) -> str:
        return f"tensor[{self.index}] {self.name}"

    @property
    def at_dims(self) -> int:
        return self.at + 8 + len(self.name.encode()) + 4

    @property
    def at_type(self) -> int:
        return self.at_dims + 8 * len(self.dims)


def _read_tensors(cursor: Cursor, count: int) -> list[_Record]:
    records: list[_Record] = []
    seen: set[str] = set()
    for index in range(count):
        cursor.field = f"tensor[{index}].name"
        at = cursor.pos
        name = read_name(cursor, MAX_NAME, "tensor name")
        if name in seen:
            raise error(
                "KT415",
                cursor.file.path,
                f'the tensor "{name}" occurs twice',
                field=cursor.field,
                offset=at,
            )
        seen.add(name)
        cursor.field = f"tensor[{index}] {name}"
        n_dims = cursor.u32()
        if n_dims > MAX_DIMS:
            raise error(
                "KT416",
                cursor.file.path,
                f'the tensor "{name}" has {n_dims} dimensions; at most {MAX_DIMS} are allowed',
                field=cursor.field,
                offset=cursor.pos - 4,
            )
        *dims, type_number, offset = cursor.unpack(_RECORD_TAIL[n_dims])
        records.append(_Record(index, name, tuple(dims), type_number, offset, at))
    return records


def _place(
    file: WeightFile, records: list[_Record], data_start: int, alignment: int
) -> tuple[dict[str, TensorInfo], int]:
    """Check shape, type and position of every tensor; return them and the end of the data."""
    tensors: dict[str, TensorInfo] = {}
    expected = 0  # offset at which the next tensor must begin
    end = 0
    for record in records:
        info = _checked_info(file, record, data_start)
        if record.offset != expected:
            raise _misplaced(file, record, expected, alignment)
        end = info.offset + info.nbytes
        if end > file.size:
            raise error(
                "KT419",
                file.path,
                f'the file is cut off: the tensor "{info.name}" ends at byte {end}, '
                f"the file at {file.size}",
                field=record.field,
                offset=file.size,
                facts=(f"missing at least {end - file.size} bytes",),
                help="download the file again; the download stopped early",
            )
        expected = _pad(record.offset + info.nbytes, alignment)
        tensors[info.name] = info
    return tensors, end


def _checked_info(file: WeightFile, record: _Record, data_start: int) -> TensorInfo:
    kind = BY_GGML_NUMBER.get(record.type_number)
    if kind is None:
        raise error(
            "KT417",
            file.path,
            f'the tensor "{record.name}" has the type {record.type_number}, which kt does not know',
            field=record.field,
            offset=record.at_type,
            facts=(f"known types: {', '.join(f'{n} {t}' for n, t in BY_GGML_NUMBER.items())}",),
            help="use a file in another quantisation, or update kt-core",
        )
    layout = LAYOUTS[kind]
    numel = math.prod(record.dims)
    shape = tuple(reversed(record.dims))
    row = record.dims[0] if record.dims else 1
    nbytes = numel // layout.block_size * layout.block_bytes
    bad = None
    if any(dim >= 1 << 63 for dim in record.dims):
        bad = "has a negative dimension"  # as signed numbers, which they are to every other reader
    elif math.prod(dim or 1 for dim in record.dims) > MAX_VALUES:
        bad = "has more values than any file can hold"
    elif row % layout.block_size:
        bad = f"has rows of {row} values; {kind} stores blocks of {layout.block_size}"
    if bad:
        raise error(
            "KT416",
            file.path,
            f'the tensor "{record.name}" {bad}',
            field=record.field,
            offset=record.at_dims,
            facts=(f"shape: {list(shape)} {kind}",),
        )
    return TensorInfo(record.name, shape, kind, data_start + record.offset, nbytes, file.path)


def _misplaced(file: WeightFile, record: _Record, expected: int, alignment: int) -> Exception:
    if record.offset % alignment:
        what = f"is not a multiple of the alignment {alignment}"
    elif record.offset < expected:
        what = "lies inside an earlier tensor"
    else:
        what = "leaves a gap after the tensor before it"
    return error(
        "KT418",
        file.path,
        f'the data of the tensor "{record.name}" {what}',
        field=record.field,
        offset=record.at_type + 4,
        facts=(f"stored offset: {record.offset}, expected: {expected}",),
    )


def _trailing(
    file: WeightFile, tensors: dict[str, TensorInfo], end: int, alignment: int, strict: bool
) -> tuple[Problem, ...]:
    padded = _pad(end, alignment)
    # A joined set continues with the next part's header, directly or after the padding.
    for start in (end, padded):
        if file.size >= start + 4 and file.read(start, 4) == GGUF_MAGIC:
            raise error(
                "KT425",
                file.path,
                "another GGUF file begins after the last tensor: files were joined with cat",
                offset=start,
                help="use the parts as they were downloaded (any one of them opens the set), "
                "or join them with llama-gguf-split --merge",
            )
    if file.size <= padded:
        return ()
    found = problem(
        "KT421",
        file.path,
        f"{file.size - padded} bytes follow the last tensor and are not used",
        offset=padded,
        facts=(f"last tensor: {printable(next(reversed(tensors)))}",) if tensors else (),
        severity=Severity.ERROR if strict else Severity.WARNING,
        help="compare the file's checksum with the publisher's",
    )
    if strict:
        raise WeightsError(found)
    return (found,)


def _pad(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
