"""Seeded damage to a valid file."""

from __future__ import annotations

import os
import random

VALUES = (0, 1, -1, 2**31, 2**32, 2**63, 2**64 - 1)
"""What every integer of a header is overwritten with."""


class MemoryFile:
    """A regular file that never touches a disk, for tests that write thousands of them."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("damaged")
        self.path = f"/proc/self/fd/{self._fd}"

    def write(self, data: bytes) -> None:
        """Make ``data`` the whole content."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def close(self) -> None:
        os.close(self._fd)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """One to four bit flips, length edits, splices, deletions or insertions."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            size = rng.choice((4, 8))
            value = rng.choice(VALUES) + rng.randint(-2, 2)
            out[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
        elif kind == 3:
            start = rng.randrange(len(data))
            piece = data[start : start + rng.randrange(1, 40)]
            out[at : at + len(piece)] = piece
        elif kind == 4:
            del out[at : at + rng.randrange(1, 24)]
        else:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 24)))
        if not out:
            out = bytearray(b"G")
    return bytes(out)
