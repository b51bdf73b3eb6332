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

    def vnni(self) -> float:
        """Billions of int8 operations per second on all threads."""
        return float(self._library.vnni_gops(self.threads, _LOOPS))

    def read(self) -> float:
        """Gigabytes read from memory per second by all threads."""
        return float(self._library.read_gbs(self.threads, self._data.ctypes.data, _BYTES // 4))


if __name__ == "__main__":
    import os

    floor = Floor(len(os.sched_getaffinity(0)))
    print(f"{floor.threads} threads: {max(floor.vnni() for _ in range(20)):.0f} int8 GOPS")
    print(f"{floor.threads} threads: {max(floor.read() for _ in range(20)):.1f} GB/s read")
