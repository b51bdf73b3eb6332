"""Read what a shared library defines and needs, without loading it.

Loading runs a library's constructors and occupies the process for good; a probe must not do that to
find out that a library has no LPGEMM. Only 64-bit little-endian x86-64 ELF files are understood,
which is what AMD BLIS is built for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_X86_64 = 62
_SHARED_OBJECT = 3
_DYNSYM = 11
_DYNAMIC = 6
_DT_NEEDED = 1


class ElfError(ValueError):
    """The file is not a shared library that this machine could load; the text says why."""


@dataclass(frozen=True)
class SharedLibrary:
    """``defined`` holds those of the asked-for symbols that the file defines, ``needed`` its sonames."""

    defined: frozenset[str]
    needed: tuple[str, ...]


def read(path: Path, symbols: Collection[str]) -> SharedLibrary:
    """Look for ``symbols`` in the dynamic symbol table of ``path``.

    Raises:
        ElfError: it is not a complete 64-bit x86-64 shared library.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ElfError("it is empty") from None
        with data:
            try:
                return _parse(data, symbols)
            except (struct.error, OverflowError):
                raise ElfError("it is cut short or damaged") from None


def _parse(data: mmap.mmap, symbols: Collection[str]) -> SharedLibrary:
    if data[:4] != b"\x7fELF":
        start = bytes(data[:64])
        if start.startswith(b"/* GNU ld script"):
            raise ElfError("it is a linker script, not a library")
        raise ElfError("it is not an ELF file")
    if data[4:6] != b"\x02\x01":
        raise ElfError("it is not a 64-bit little-endian library")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if machine != _X86_64:
        raise ElfError("it is built for another processor family than x86-64")
    if kind != _SHARED_OBJECT:
        raise ElfError("it is not a shared library")
    (section_offset,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    if entry_size < 64:
        raise ElfError("it has no section table")
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * entry_size)
        for i in range(count)
    ]
    defined: set[str] = set()
    needed: list[str] = []
    for _, section_type, _, _, offset, size, link, _, _, _ in sections:
        if section_type not in (_DYNSYM, _DYNAMIC) or link >= len(sections):
            continue
        strings = bytes(_slice(data, sections[link][4], sections[link][5]))
        table = _slice(data, offset, size)
        if section_type == _DYNSYM:
            defined |= _defined(table, strings, symbols)
        else:
            needed += _needed(table, strings)
    return SharedLibrary(frozenset(defined), tuple(needed))


def _slice(data: mmap.mmap, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ElfError("it is cut short or damaged")
    return data[offset : offset + size]


def _defined(table: bytes, strings: bytes, symbols: Collection[str]) -> set[str]:
    wanted: dict[int, str] = {}
    for symbol in symbols:
        at = strings.find(b"\0" + symbol.encode() + b"\0")
        if at >= 0:
            wanted[at + 1] = symbol
    whole = len(table) // 24 * 24
    return {
        wanted[name]
        for name, _info, _other, section, _value, _size in struct.iter_unpack(
            "<IBBHQQ", table[:whole]
        )
        if section != 0 and name in wanted
    }


def _needed(table: bytes, strings: bytes) -> list[str]:
    names = []
    for tag, value in struct.iter_unpack("<qQ", table[: len(table) // 16 * 16]):
        if tag == _DT_NEEDED and value < len(strings):
            end = strings.find(b"\0", value)
            names.append(strings[value:end].decode("utf-8", "replace"))
    return names
