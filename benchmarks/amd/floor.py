"""What this machine can do at best: the int8 rate of its VNNI units and its read bandwidth."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("floor.c")
_BYTES = 1 << 30
_LOOPS = 400_000  # about 2 ms
_TRIES = 5  # a limit is what can be reached; a neighbour on the machine only lowers it


class Floor:
    """Builds floor.c once; each call measures anew, since the machine may be shared."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / "floor.so"
        flags = ["-O3", "-mavx512f", "-mavx512bw", "-mavx512vnni", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.vnni_gops.restype = self._library.read_gbs.restype = ctypes.c_double
        self._library.vnni_gops.argtypes = [ctypes.c_int, ctypes.c_long]
        self._library.read_gbs.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        self._data = np.ones(_BYTES, np.uint8)
        self._next = 0

    def vnni(self) -> float:
        """Billions of int8 operations per second on all threads, the best of a few tries."""
        return max(self._library.vnni_gops(self.threads, _LOOPS) for _ in range(_TRIES))

    def read(self) -> float:
        """Gigabytes read from memory per second by all threads, the best of a few tries.

        Each try reads another quarter, so that what a large last cache kept is not read again.
        """
        part, start = _BYTES // 4, self._data.ctypes.data
        rates = []
        for _ in range(_TRIES):
            self._next = (self._next + part) % _BYTES
            rates.append(self._library.read_gbs(self.threads, start + self._next, part))
        return max(rates)


if __name__ == "__main__":
    import os

    floor = Floor(len(os.sched_getaffinity(0)))
    print(f"{floor.threads} threads: {floor.vnni():.0f} int8 GOPS")
    print(f"{floor.threads} threads: {floor.read():.1f} GB/s read")
