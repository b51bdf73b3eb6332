"""The three parts of a small split GGUF set."""

from __future__ import annotations

from .gguf_bytes import I32, TENSORS, U16, File, scalar, text

PARTS = 3


def part(number: int, count: int = PARTS, total: int = 3, **changes) -> bytes:
    """Part ``number`` from 0: metadata only, then one tensor, then two."""
    tensors = {0: [], 1: TENSORS[:1], 2: TENSORS[1:]}[number]
    pairs = [
        scalar("split.no", U16, changes.get("no", number)),
        scalar("split.count", U16, count),
        scalar("split.tensors.count", I32, total),
    ]
    if number == 0:
        pairs = [text("general.architecture", "llama"), *pairs]
    return File(pairs=pairs, tensors=changes.get("tensors", tensors)).build()


def name(number: int, count: int = PARTS, stem: str = "model") -> str:
    return f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"
