"""Reading a header front to back: every length is held against the file before it is followed."""

from __future__ import annotations

import struct

from kt_core.weights.files import WeightFile
from kt_core.weights.text import error

_WINDOW = 1 << 20
_AGAIN = "download the file again and compare its size and checksum"
_U64 = struct.Struct("<Q").unpack_from
_U32 = struct.Struct("<I").unpack_from


class Cursor:
    """A position in a file, and a window of its bytes that moves with it.

    ``field`` names what is being read and appears in every error. At most one window (1 MiB, or one
    item that was asked for) is held in memory, however long the header is.
    """

    __slots__ = ("_start", "_window", "field", "file", "limit", "pos")

    def __init__(self, file: WeightFile, pos: int = 0) -> None:
        self.file = file
        self.limit = file.size
        self.pos = pos
        self.field = "header"
        self._window = b""
        self._start = 0

    @property
    def remaining(self) -> int:
        """Bytes between here and the end of the file."""
        return self.limit - self.pos

    def u32(self) -> int:
        """Read a little-endian 32-bit count."""
        index = self._reach(4)
        self.pos += 4
        return int(_U32(self._window, index)[0])

    def u64(self) -> int:
        """Read a little-endian 64-bit count."""
        index = self._reach(8)
        self.pos += 8
        return int(_U64(self._window, index)[0])

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Read one record of a fixed form."""
        index = self._reach(form.size)
        self.pos += form.size
        return form.unpack_from(self._window, index)

    def take(self, length: int) -> bytes:
        """Read ``length`` bytes, a length that the file states."""
        self.claim(length, 1, "bytes")
        index = self._reach(length)
        self.pos += length
        return self._window[index : index + length]

    def skip(self, length: int) -> None:
        """Step over ``length`` bytes, a length that the file states."""
        self.claim(length, 1, "bytes")
        self.pos += length

    def claim(self, count: int, minimum: int, what: str) -> None:
        """Prove that ``count`` items of at least ``minimum`` bytes each can still follow."""
        if count * minimum > self.remaining:
            need = f", which need at least {count * minimum} bytes" if minimum > 1 else ""
            raise error(
                "KT411",
                self.file.path,
                f"claims {count} {what}{need}; {self.remaining} are left in the file",
                field=self.field,
                offset=self.pos,
                help=_AGAIN,
            )

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` strings (64-bit length, bytes), reading the lengths only."""
        self.claim(count, 8, "strings")
        left = count
        while left:
            begin = index = self._reach(8)
            window = self._window
            last = len(window) - 8
            while left and index <= last:  # the loop that a vocabulary of 10^5 entries runs in
                index += _U64(window, index)[0] + 8
                left -= 1
            if self._start + index > self.limit:
                self.field += f"[{count - left - 1}]"
                self.pos = self._start + self._last_string(begin)
                self.claim(self.u64(), 1, "bytes")
            self.pos = self._start + index

    def _last_string(self, index: int) -> int:
        """Return where in the window the string begins that leaves it, walking from ``index``."""
        while True:
            following = index + 8 + int(_U64(self._window, index)[0])
            if following > len(self._window):
                return index
            index = following

    def _reach(self, count: int) -> int:
        """Make ``count`` bytes from here available; return where they start in the window."""
        index = self.pos - self._start
        if index < 0 or index + count > len(self._window):
            if count > self.remaining:
                raise error(
                    "KT408",
                    self.file.path,
                    f"the header is cut off: the file ends at byte {self.limit}",
                    field=self.field,
                    offset=self.pos,
                    help=_AGAIN,
                )
            self._window = self.file.read(self.pos, min(max(count, _WINDOW), self.remaining))
            self._start = self.pos
            index = 0
        return index
