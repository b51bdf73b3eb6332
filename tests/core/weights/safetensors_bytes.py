"""safetensors files written byte by byte."""

from __future__ import annotations

import json
import struct
from typing import Any

DATA = {
    "a.weight": ("F32", [2, 3], struct.pack("<6f", *range(6))),
    "b.bias": ("BF16", [4], struct.pack("<4H", 0x3F80, 0xC000, 0, 0x7F80)),
    "c.ids": ("I64", [1], struct.pack("<q", -7)),
}


def entries(tensors: dict[str, tuple[str, list[int], bytes]]) -> dict[str, Any]:
    """The header entries of tensors that follow each other."""
    found: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return found


def file(header: Any, data: bytes, length: int | None = None) -> bytes:
    """A file with this header (text, bytes, or plain data) and data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def model(tensors: dict[str, tuple[str, list[int], bytes]] = DATA, **metadata: str) -> bytes:
    """A valid file."""
    header = {"__metadata__": metadata} if metadata else {}
    return file(header | entries(tensors), b"".join(data for _, _, data in tensors.values()))
