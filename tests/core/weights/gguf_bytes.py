"""GGUF files written byte by byte, so that any field can be wrong, and a map of their integers."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"]))


def u32(value: int) -> bytes:
    return struct.pack("<I", value % 2**32)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value % 2**64)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


@dataclass
class Pair:
    """A key and its value; ``payload`` is written behind the type as it is."""

    key: str | bytes
    type: int
    payload: bytes
    key_length: int | None = None


def scalar(key: str, type: int, value: float) -> Pair:
    return Pair(key, type, struct.pack("<" + CODES[type], value))


def text(key: str, value: str | bytes) -> Pair:
    return Pair(key, STRING, string(value))


def array(key: str, item: int, values: list, count: int | None = None) -> Pair:
    count = len(values) if count is None else count
    body = b"".join(
        string(value) if item == STRING else struct.pack("<" + CODES[item], value)
        for value in values
    )
    return Pair(key, ARRAY, u32(item) + u64(count) + body)


@dataclass
class Tensor:
    """A header entry and its data. ``offset`` and ``n_dims`` default to the right ones."""

    name: str | bytes
    dims: tuple[int, ...]
    type: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None
    name_length: int | None = None


@dataclass
class Field:
    """An integer of the header: what it is, where, and how many bytes."""

    name: str
    offset: int
    size: int


@dataclass
class File:
    """A GGUF file in parts. The defaults make a small valid one with three tensors."""

    pairs: list[Pair] = field(default_factory=lambda: list(PAIRS))
    tensors: list[Tensor] = field(default_factory=lambda: list(TENSORS))
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_pairs: int | None = None
    alignment: int = 32
    tail: bytes = b""
    pad_last: bool = False

    def build(self) -> bytes:
        return self.build_with_fields()[0]

    def build_with_fields(self) -> tuple[bytes, list[Field]]:
        out = bytearray(self.magic)
        fields: list[Field] = []

        def integer(name: str, size: int, value: int) -> None:
            fields.append(Field(name, len(out), size))
            out.extend(u32(value) if size == 4 else u64(value))

        integer("version", 4, self.version)
        integer("tensor_count", 8, len(self.tensors) if self.n_tensors is None else self.n_tensors)
        integer("kv_count", 8, len(self.pairs) if self.n_pairs is None else self.n_pairs)
        for i, pair in enumerate(self.pairs):
            raw = pair.key.encode() if isinstance(pair.key, str) else pair.key
            integer(
                f"kv{i}.key_length", 8, len(raw) if pair.key_length is None else pair.key_length
            )
            out += raw
            integer(f"kv{i}.type", 4, pair.type)
            start = len(out)
            out += pair.payload
            if pair.type in (U32, I32):
                fields.append(Field(f"kv{i}.value", start, 4))
            elif pair.type in (STRING, U64, I64):
                fields.append(Field(f"kv{i}.value", start, 8))
            elif pair.type == ARRAY:
                fields.append(Field(f"kv{i}.item_type", start, 4))
                fields.append(Field(f"kv{i}.count", start + 4, 8))
                if len(pair.payload) >= 20 and pair.payload[0] == STRING:
                    fields.append(Field(f"kv{i}.first_item", start + 12, 8))
        position = 0
        for i, tensor in enumerate(self.tensors):
            raw = tensor.name.encode() if isinstance(tensor.name, str) else tensor.name
            length = len(raw) if tensor.name_length is None else tensor.name_length
            integer(f"tensor{i}.name_length", 8, length)
            out += raw
            n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
            integer(f"tensor{i}.n_dims", 4, n_dims)
            for j, dim in enumerate(tensor.dims):
                integer(f"tensor{i}.dim{j}", 8, dim)
            integer(f"tensor{i}.type", 4, tensor.type)
            integer(f"tensor{i}.offset", 8, position if tensor.offset is None else tensor.offset)
            position = self._pad(position + len(tensor.data))
        out += bytes(self._pad(len(out)) - len(out)) if self.tensors else b""
        for i, tensor in enumerate(self.tensors):
            out += tensor.data
            if i + 1 < len(self.tensors) or self.pad_last:
                out += bytes(self._pad(len(tensor.data)) - len(tensor.data))
        return bytes(out) + self.tail, fields

    def _pad(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment if self.alignment else size


TENSORS = [
    Tensor("blk.0.attn_q.weight", (4, 2), 0, struct.pack("<8f", *range(8))),
    Tensor("blk.0.ffn_up.weight", (32, 2), 2, bytes(range(36))),
    Tensor("output.weight", (5,), 1, struct.pack("<5e", *range(5))),
]

PAIRS = [
    text("general.architecture", "llama"),
    scalar("general.alignment", U32, 32),
    scalar("llama.block_count", U32, 1),
    scalar("a.u8", U8, 200),
    scalar("a.i8", I8, -3),
    scalar("a.u16", U16, 60000),
    scalar("a.i16", I16, -5),
    scalar("a.i32", I32, -70000),
    scalar("a.f32", F32, 1.5),
    scalar("a.bool", BOOL, True),
    scalar("a.u64", U64, 2**63),
    scalar("a.i64", I64, -(2**40)),
    scalar("a.f64", F64, 0.1),
    array("tokens", STRING, ["a", "", "Ġthe", "<|end|>"]),
    array("types", I32, [1, 1, 3, -1]),
    array("scores", F32, [0.5, -1.0]),
    array("flags", BOOL, [True, False]),
    array("none", STRING, []),
]


def without(key: str) -> list[Pair]:
    """The default pairs but one."""
    return [pair for pair in PAIRS if pair.key != key]


def aligned(value: int, type: int = U32) -> list[Pair]:
    """The default pairs with another ``general.alignment``."""
    return [scalar("general.alignment", type, value), *without("general.alignment")]
