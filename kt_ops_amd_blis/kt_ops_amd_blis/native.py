"""The compiled part: its handle, its errors as exceptions, its threads and its memory."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.errors import KernelError

try:
    from kt_ops_amd_blis._native import ffi, lib
except ImportError as error:
    raise KernelError.of(
        "KT548",
        "the compiled part of kt-ops-amd-blis cannot be loaded",
        facts=[str(error)],
        help="pip install --force-reinstall --no-deps kt-ops-amd-blis",
    ) from error

__all__ = ["check", "empty", "ffi", "isa", "lib", "pool", "threads"]

THREADS_VARIABLE = "KT_CPU_THREADS"
"""Number of threads to compute with; default: what the process may use."""

_MAX_THREADS = 1024

# status: (code, message, help)
_FAILURES = {
    lib.KT_BAD_ARGUMENT: ("KT540", "{what} was given sizes or options it cannot compute on", None),
    lib.KT_NO_MEMORY: ("KT544", "there is not enough memory for {what}", "give it fewer tokens"),
    lib.KT_BAD_EXPERT: ("KT539", "{what} was given an expert id outside the layer", None),
    lib.KT_NOT_FINITE: ("KT541", "the weights of {what} hold NaN or infinity", None),
    lib.KT_NO_THREADS: ("KT545", "threads for {what} could not be started", "lower KT_CPU_THREADS"),
    lib.KT_BAD_ISA: ("KT533", "this CPU cannot run what was forced for {what}", None),
    lib.KT_INT8_ONLY: (
        "KT537",
        "{what}: the AMD BLIS backend computes in int8 only",
        "use MOE_INT8",
    ),
}


def check(status: int, what: str, facts: tuple[str, ...] = ()) -> None:
    """Raise the ``KernelError`` that ``status`` stands for; ``what`` names the operation or module."""
    if status == lib.KT_OK:
        return
    code, message, help_line = _FAILURES[status]
    raise KernelError.of(code, message.format(what=what), facts=facts, help=help_line)


def isa() -> str:
    """Return the instruction set the row kernels use: ``"avx512"`` or ``"portable"``."""
    return str(ffi.string(lib.kt_isa()).decode())


def threads() -> int:
    """Return how many threads to compute with.

    Raises:
        KernelError: KT545 if ``KT_CPU_THREADS`` is not a number from 1 to 1024.
    """
    return _threads(os.environ.get(THREADS_VARIABLE, ""))


@functools.lru_cache(maxsize=8)
def _threads(setting: str) -> int:
    text = setting.strip()
    if not text:
        from kt_core.registry.machine import effective_threads

        return min(_MAX_THREADS, effective_threads())
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_THREADS:
        raise KernelError.of(
            "KT545",
            f'{THREADS_VARIABLE}="{text}" is not a number of threads',
            help=f"set it to 1…{_MAX_THREADS}, or unset it to use what this process may",
        )
    return int(text)


_lock = threading.Lock()
_pool: Any = None
_pool_key: tuple[int, str] = (0, "")


def pool() -> Any:
    """Return this process's threads; called for every forward pass, so it must be cheap.

    A forked child starts its own, since threads do not survive a fork.
    """
    global _pool, _pool_key
    key = (os.getpid(), os.environ.get(THREADS_VARIABLE, ""))
    if _pool is not None and _pool_key == key:
        return _pool
    with _lock:
        if _pool is None or _pool_key != key:
            handle = ffi.new("kt_pool **")
            check(lib.kt_pool_new(_threads(key[1]), handle), "AMD BLIS")
            mine = key[0]
            # Those of a parent process do not exist here and must not be joined.
            _pool = ffi.gc(
                handle[0], lambda p: lib.kt_pool_free(p) if os.getpid() == mine else None
            )
            _pool_key = key
    return _pool


def empty(count: int, dtype: type[np.generic], what: str) -> npt.NDArray[Any]:
    """Return an uninitialised array in memory of its own, 64-byte aligned, huge pages asked for.

    Raises:
        KernelError: KT544 if there is not enough memory.
    """
    size = count * np.dtype(dtype).itemsize
    size = max(size, 64)
    address = lib.kt_alloc(size)
    if address == ffi.NULL:
        raise KernelError.of("KT544", f"there is not enough memory for {what} ({size:,} bytes)")
    owner = ffi.gc(address, lambda p: lib.kt_free(p, size), size)
    memory = np.frombuffer(ffi.buffer(owner, size), dtype=np.uint8)  # keeps the owner alive
    return memory[: count * np.dtype(dtype).itemsize].view(dtype)
