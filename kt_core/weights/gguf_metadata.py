"""The key/value part of a GGUF file: found at opening, texts and arrays decoded on access."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kt_core.weights.cursor import Cursor
from kt_core.weights.files import WeightFile
from kt_core.weights.text import error, printable, raw_name

MAX_KEY = 65_535
"""Longest key in bytes (the format's own limit)."""


@dataclass(frozen=True)
class ValueType:
    """A type of a metadata value. ``code`` is its :mod:`struct` letter, empty for text, arrays."""

    name: str
    code: str
    size: int

    @property
    def form(self) -> struct.Struct:
        """The little-endian layout of one value."""
        return struct.Struct("<" + self.code)


STRING = ValueType("string", "", 8)
ARRAY = ValueType("array", "", 12)
VALUE_TYPES: dict[int, ValueType] = {
    0: ValueType("uint8", "B", 1),
    1: ValueType("int8", "b", 1),
    2: ValueType("uint16", "H", 2),
    3: ValueType("int16", "h", 2),
    4: ValueType("uint32", "I", 4),
    5: ValueType("int32", "i", 4),
    6: ValueType("float32", "f", 4),
    7: ValueType("bool", "?", 1),
    8: STRING,
    9: ARRAY,
    10: ValueType("uint64", "Q", 8),
    11: ValueType("int64", "q", 8),
    12: ValueType("float64", "d", 8),
}
"""GGUF's numbering; ``size`` is the least number of bytes a value can take."""

_LEAST_PAIR = 8 + 1 + 4 + 1  # length, one letter, type, the smallest value
_FORMS = {number: kind.form for number, kind in VALUE_TYPES.items() if kind.code}


@dataclass(frozen=True, slots=True)
class MetadataField:
    """Where one value lies.

    ``type`` is the value's type, for an array that of its items; ``count`` is ``None`` unless it is
    an array. The value (a string's length included, an array's not) has ``nbytes`` bytes at
    ``offset``.
    """

    key: str
    type: ValueType
    count: int | None
    offset: int
    nbytes: int

    @property
    def type_name(self) -> str:
        """The type as text: ``"uint32"``, ``"string[49152]"``."""
        return self.type.name if self.count is None else f"{self.type.name}[{self.count}]"


class GgufMetadata(Mapping[str, Any]):
    """Metadata as Python values: int, float, bool, str, and lists of them.

    Texts and arrays are decoded when they are asked for and then kept; treat lists as read-only.
    ``WeightsError`` KT429 is raised for a text that is not UTF-8, KT427 after the file was closed.
    """

    def __init__(self, file: WeightFile) -> None:
        self._file = file
        self._fields: dict[str, MetadataField] = {}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        value = self._decode(self._fields[key], None)
        self._values[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._fields  # the inherited test would decode the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def field(self, key: str) -> MetadataField:
        """Return type, length and place of a value without decoding it."""
        return self._fields[key]

    def head(self, key: str, count: int) -> list[Any]:
        """Return the first ``count`` items of an array without decoding the rest."""
        field = self._fields[key]
        if key in self._values or field.count is None:
            value = self[key]
            return value[:count] if isinstance(value, list) else [value]
        return list(self._decode(field, min(count, field.count)))

    def read_pairs(self, cursor: Cursor, count: int) -> None:
        """Walk ``count`` key/value pairs at ``cursor``: lengths are proven, nothing large read."""
        cursor.field = "kv_count"
        cursor.claim(count, _LEAST_PAIR, "key/value pairs")
        for index in range(count):
            cursor.field = f"kv[{index}].key"
            at = cursor.pos
            key = read_name(cursor, MAX_KEY, "key")
            if key in self._fields:
                raise error(
                    "KT415",
                    cursor.file.path,
                    f'the key "{printable(key)}" occurs twice',
                    field=cursor.field,
                    offset=at,
                )
            cursor.field = f"kv[{index}] {printable(key, 80)}"
            self._fields[key] = self._read_value(cursor, key)

    def _read_value(self, cursor: Cursor, key: str) -> MetadataField:
        number = cursor.u32()
        form = _FORMS.get(number)
        offset = cursor.pos
        if form is not None:
            (self._values[key],) = cursor.unpack(form)
            return MetadataField(key, VALUE_TYPES[number], None, offset, form.size)
        if number == 8:
            cursor.skip(cursor.u64())
            return MetadataField(key, STRING, None, offset, cursor.pos - offset)
        if number != 9:
            raise _bad_type(cursor, f'the value of "{printable(key)}" has the type {number}', 4)
        item = VALUE_TYPES.get(cursor.u32())
        count = cursor.u64()
        if item is None or item is ARRAY:
            number = cursor.pos - 12
            what = "is an array of arrays" if item else "is an array of an unknown type"
            raise _bad_type(cursor, f'the value of "{printable(key)}" {what}', 12)
        offset = cursor.pos
        if item is STRING:
            cursor.skip_strings(count)
        else:
            cursor.claim(count, item.size, f"values of type {item.name}")
            cursor.skip(count * item.size)
        return MetadataField(key, item, count, offset, cursor.pos - offset)

    def _decode(self, field: MetadataField, head: int | None) -> Any:
        """Decode a value, or the first ``head`` items of an array."""
        self._file.check_unchanged()  # the walk at opening proved the lengths of that file
        if field.count is None:
            return self._texts(field, 1)[0]
        count = field.count if head is None else head
        if field.type is STRING:
            return self._texts(field, count)
        raw = self._file.read(field.offset, count * field.type.size)
        return list(struct.unpack(f"<{count}{field.type.code}", raw))

    def _texts(self, field: MetadataField, count: int) -> list[str]:
        """Decode the first ``count`` of the strings at ``field``."""
        if field.count is not None and count < field.count:  # do not read what is not wanted
            end = Cursor(self._file, field.offset)
            end.skip_strings(count)
            raw = self._file.read(field.offset, end.pos - field.offset)
        else:
            raw = self._file.read(field.offset, field.nbytes)
        unpack = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        at = 0
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(raw, at)[0]
                texts.append(raw[start:at].decode())
        except UnicodeDecodeError as cause:
            name = field.key if field.count is None else f"{field.key}[{len(texts)}]"
            raise error(
                "KT429",
                self._file.path,
                f'the text in "{printable(name)}" is not UTF-8',
                field=printable(name),
                offset=field.offset + start + cause.start,
                facts=(f"it begins: {raw_name(raw[start:at], 40)}",),
            ) from cause
        except (struct.error, OverflowError) as cause:  # rewritten within one tick of the clock
            raise error(
                "KT426",
                self._file.path,
                "changed since it was opened",
                field=printable(field.key),
                help="let the download or conversion finish, then load it again",
            ) from cause
        return texts


def read_name(cursor: Cursor, longest: int, what: str) -> str:
    """Read a key or tensor name, 1 to ``longest`` bytes of printable UTF-8 (else KT412)."""
    at = cursor.pos
    length = cursor.u64()
    cursor.claim(length, 1, "bytes")
    if not 1 <= length <= longest:
        message = (
            f"a {what} is empty"
            if length == 0
            else f"a {what} of {length} bytes; at most {longest} are allowed"
        )
        raise error("KT412", cursor.file.path, message, field=cursor.field, offset=at)
    raw = cursor.take(length)
    try:
        name = raw.decode()
    except UnicodeDecodeError as cause:
        raise error(
            "KT412",
            cursor.file.path,
            f'the {what} "{raw_name(raw)}" is not UTF-8',
            field=cursor.field,
            offset=at + 8 + cause.start,
        ) from cause
    if not name.isprintable():
        raise error(
            "KT412",
            cursor.file.path,
            f'the {what} "{printable(name)}" holds control characters',
            field=cursor.field,
            offset=at + 8,
        )
    return name


def _bad_type(cursor: Cursor, message: str, back: int) -> Exception:
    known = ", ".join(f"{number} {kind.name}" for number, kind in VALUE_TYPES.items())
    return error(
        "KT413",
        cursor.file.path,
        message,
        field=cursor.field,
        offset=cursor.pos - back,
        facts=(f"known types: {known}; no arrays of arrays",),
    )
