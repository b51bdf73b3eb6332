"""The loaded BLIS of this process."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Any

from kt_core.errors import KernelError
from kt_core.registry.environment import probe_env
from kt_ops_amd_blis.examine import (
    GEMM,
    GROUP_GEMM,
    GROUP_REORDER,
    GROUP_REORDER_SIZE,
    REORDER,
    REORDER_SIZE,
    open_library,
)
from kt_ops_amd_blis.native import ffi
from kt_ops_amd_blis.verdicts import Verdict, search

# Functions that set and get the number of threads of the calling thread, best first. Plain BLIS
# before 5.3 has only the second pair; a build that leaves threads to OpenMP is set through OpenMP
# itself.
_THREAD_CONTROL = (
    ("bli_thread_set_num_threads_local", "bli_thread_get_num_threads", False),
    ("dlp_thread_set_num_threads_local", "dlp_thread_get_num_threads_active", False),
    ("bli_thread_set_num_threads", "bli_thread_get_num_threads", False),
    ("omp_set_num_threads", "omp_get_max_threads", True),
)


@dataclass(frozen=True)
class Library:
    """A usable BLIS. ``table`` is the ``kt_blis`` of addresses that native code is given."""

    verdict: Verdict
    table: Any
    handle: ctypes.CDLL
    thread_control: str

    @property
    def version(self) -> str:
        """The library's own build string, such as ``AOCL-BLAS 5.3.0 Build 20260507``."""
        return "" if self.verdict.facts is None else self.verdict.facts.version


@functools.cache
def library() -> Library:
    """Load the BLIS that the search chooses, once per process.

    Raises:
        KernelError: KT530 to KT536, the same verdict a plan gets from the probe.
    """
    env = probe_env("cpu", os.environ)
    finding = search(env.environ, env.cpu_flags)
    if finding.chosen is None:
        raise KernelError.of(
            finding.code,
            "AMD BLIS LPGEMM cannot run here",
            facts=finding.reasons,
            help=finding.help,
        )
    return load(finding.chosen)


def load(verdict: Verdict) -> Library:
    """Load a library whose verdict is good.

    Raises:
        KernelError: KT534 if it cannot be loaded into this process although another one could.
    """
    preload = () if verdict.facts is None else tuple(map(str, verdict.facts.preload))
    try:
        handle = open_library(str(verdict.path), preload)
    except OSError as error:
        raise KernelError.of(
            "KT534",
            f"{verdict.path} cannot be loaded into this process",
            facts=[str(error)],
            help="load it alone: python -m kt_ops_amd_blis.selftest",
        ) from error
    addresses: dict[str, Any] = {
        "gemm": _address(handle, GEMM),
        "reorder": _address(handle, REORDER),
        "reorder_size": _address(handle, REORDER_SIZE),
    }
    if verdict.facts is not None and verdict.facts.groups:
        addresses["group_gemm"] = _address(handle, GROUP_GEMM)
        addresses["group_reorder"] = _address(handle, GROUP_REORDER)
        addresses["group_reorder_size"] = _address(handle, GROUP_REORDER_SIZE)
    control = ""
    for setter, getter, takes_int in _THREAD_CONTROL:
        if hasattr(handle, setter) and hasattr(handle, getter):
            addresses["set_threads"] = _address(handle, setter)
            addresses["get_threads"] = _address(handle, getter)
            addresses["threads_are_int"] = int(takes_int)
            control = setter
            break
    return Library(verdict, ffi.new("kt_blis *", addresses), handle, control)


def _address(handle: ctypes.CDLL, name: str) -> Any:
    return ffi.cast("void *", ctypes.cast(getattr(handle, name), ctypes.c_void_p).value)
