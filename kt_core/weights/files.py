"""A file opened for reading: never anything but a regular file, never beyond its length."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import TYPE_CHECKING

from kt_core.weights.text import error

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Non-blocking, so that a FIFO that replaced the file between the check and the open cannot hang us.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
)


class WeightFile:
    """One regular file of weights and its identity at the time it was opened.

    Headers are always read with ``pread``, so that a file that shrinks is an error, not a signal.
    Tensors are views of one shared mapping, or with ``use_mmap=False`` copies read on demand; only
    the views can meet SIGBUS, and only if another process cuts the file while it is in use.
    """

    __slots__ = ("__weakref__", "_closer", "_fd", "_identity", "_map", "path", "size", "use_mmap")

    def __init__(self, path: str, *, use_mmap: bool = True) -> None:
        self.path = path
        self.use_mmap = use_mmap
        self._map: mmap.mmap | None = None
        refuse_special(path, stat_path(path))
        try:
            self._fd = os.open(path, _FLAGS)
        except OSError as cause:
            raise error("KT401", path, f"cannot be opened: {cause.strerror}") from cause
        self._closer = weakref.finalize(self, os.close, self._fd)
        try:
            status = os.fstat(self._fd)
            refuse_special(path, status)
        except OSError as cause:
            self._closer()
            raise error("KT428", path, f"cannot be examined: {cause.strerror}") from cause
        except BaseException:
            self._closer()
            raise
        self.size = status.st_size
        self._identity = _identity(status)

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly ``count`` bytes at ``offset``; the caller has proven that they exist."""
        self._check_open()
        pieces = []
        while count:
            try:
                piece = os.pread(self._fd, count, offset)
            except OSError as cause:
                raise error(
                    "KT428", self.path, f"reading failed: {cause.strerror}", offset=offset
                ) from cause
            if not piece:
                raise self._shrunk(offset)
            pieces.append(piece)
            count -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return ``nbytes`` bytes at ``offset`` as a read-only uint8 array ``(nbytes,)``.

        A view keeps the mapping alive after :meth:`close`. Raises ``WeightsError`` KT426 if the
        file is no longer the one that was opened.
        """
        import numpy as np

        self._check_open()
        self.check_unchanged()
        if nbytes == 0:  # an empty file cannot be mapped
            data = np.empty(0, np.uint8)
        elif self.use_mmap:
            return np.frombuffer(self._mapping(), np.uint8, nbytes, offset)
        else:
            data = np.empty(nbytes, np.uint8)
            self._read_into(memoryview(data.data), offset)
        data.flags.writeable = False
        return data

    def check_unchanged(self) -> None:
        """Raise ``WeightsError`` KT426 if size, modification time or inode differ from the opening.

        A file that was only unlinked is still complete behind our descriptor and passes.
        """
        self._check_open()
        try:
            now = _identity(os.fstat(self._fd))
        except OSError as cause:
            raise error("KT428", self.path, f"cannot be examined: {cause.strerror}") from cause
        if now == self._identity:
            try:
                now = _identity(os.stat(self.path))
            except OSError:
                return
        if now != self._identity:
            named = ("device", "inode", "size", "modification time")
            changed = [n for n, a, b in zip(named, self._identity, now, strict=True) if a != b]
            raise error(
                "KT426",
                self.path,
                "changed since it was opened",
                facts=(f"changed: {', '.join(changed)}",),
                help="let the download or conversion finish, then load it again",
            )

    def close(self) -> None:
        """Close the descriptor and let go of the mapping, which lives on in views still held."""
        self._map = None
        self._closer()

    def _mapping(self) -> mmap.mmap:
        if self._map is None:
            try:
                self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as cause:
                raise error(
                    "KT428",
                    self.path,
                    f"cannot be mapped into memory: {cause}",
                    help="open it with mmap=False",
                ) from cause
        return self._map

    def _read_into(self, target: memoryview, offset: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._fd, [target[done:]], offset + done)
            except OSError as cause:
                raise error(
                    "KT428", self.path, f"reading failed: {cause.strerror}", offset=offset + done
                ) from cause
            if count == 0:
                raise self._shrunk(offset + done)
            done += count

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise error("KT427", self.path, "was closed before this was read from it")

    def _shrunk(self, offset: int) -> Exception:
        return error(
            "KT426",
            self.path,
            f"ended at byte {offset} although it had {self.size} bytes when it was opened",
            offset=offset,
            help="let the download or conversion finish, then load it again",
        )


def stat_path(path: str) -> os.stat_result:
    """Return the status of ``path``, links followed; ``WeightsError`` KT401 if there is nothing."""
    try:
        return os.stat(path)
    except FileNotFoundError as cause:
        raise error(
            "KT401", path, "no such file or folder", facts=_nearest_existing(path)
        ) from cause
    except OSError as cause:
        raise error("KT401", path, f"cannot be opened: {cause.strerror}") from cause
    except ValueError as cause:  # a NUL byte in the path
        raise error("KT401", path, "is not a path") from cause


def refuse_special(path: str, status: os.stat_result) -> None:
    """Raise ``WeightsError`` KT402 unless ``status`` is that of a regular file."""
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for test, name in _KINDS if test(status.st_mode)), "not a regular file")
    raise error("KT402", path, f"is {kind}, not a file of weights")


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _nearest_existing(path: str) -> tuple[str, ...]:
    """Say how much of a missing path exists: the usual cause is one misspelt part."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
    return (f"the folder that exists: {parent}",)
