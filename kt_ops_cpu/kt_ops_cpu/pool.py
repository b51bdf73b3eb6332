"""The process's one pool of threads, as seen from Python.

It is set up by the first kernel that loads. How many threads: the option ``threads`` of a rule,
else ``KT_CPU_THREADS``, else what computes well here (affinity, control-group quota, physical
cores).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from kt_core.errors import KernelError
from kt_core.registry.machine import effective_threads
from kt_ops_cpu.library import check, native
from kt_ops_cpu.placement import Placement, place, read_topology

THREADS_VARIABLE = "KT_CPU_THREADS"
MAX_THREADS = 1024

SPIN_US = 50
"""How long an idle worker looks for work before it sleeps, in microseconds: longer than the gaps
within a layer, far shorter than those between requests."""

_lock = threading.Lock()
_asked: int | None = None  # the number a rule asked for
_placement: Placement | None = None


def default_threads(environ: Mapping[str, str]) -> int:
    """Return the number of threads without a rule's option.

    Raises:
        KernelError: KT507 if ``KT_CPU_THREADS`` is not a number from 1 to 1024.
    """
    text = environ.get(THREADS_VARIABLE)
    if text is None:
        return effective_threads()
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_THREADS:
        raise KernelError.of(
            "KT507",
            f"{THREADS_VARIABLE}={text!r} is not a number from 1 to {MAX_THREADS}",
            help=f"unset {THREADS_VARIABLE}: {effective_threads()} threads suit this machine",
        )
    return int(text)


def ensure_pool(threads: int | None = None) -> Placement:
    """Set the pool up if that has not been done; ``threads`` is what a rule asks for.

    Raises:
        KernelError: KT507 for a bad number, KT514 if another rule asked for another one.
    """
    global _asked
    with _lock:
        if threads is not None and _asked is not None and threads != _asked:
            raise KernelError.of(
                "KT514",
                f"two rules ask for different numbers of CPU threads: {_asked} and {threads}",
                facts=["the pool of threads is one per process"],
                help=f"give the same number in both, or use {THREADS_VARIABLE}",
            )
        if _placement is not None and (threads is None or threads == _asked):
            return _placement
        placed = _set_pool(default_threads(os.environ) if threads is None else threads)
        _asked = threads if threads is not None else _asked
        return placed


def set_threads(threads: int) -> Placement:
    """Resize the pool, whatever was asked for before.

    Raises:
        KernelError: KT507 for a number outside 1 to 1024.
    """
    with _lock:
        return _set_pool(threads)


def _set_pool(threads: int) -> Placement:
    global _placement
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise KernelError.of(
            "KT507",
            f"threads: {threads!r} is not a number from 1 to {MAX_THREADS}",
            help=f"leave it out: {effective_threads()} threads suit this machine",
        )
    module = native()
    ffi = module.ffi
    placement = place(read_topology(os.environ), threads)
    nodes = placement.topology.nodes
    starts = [sum(len(cpus) for cpus in nodes[:n]) for n in range(len(nodes) + 1)]
    node_of_thread = ffi.new("int32_t[]", list(placement.node_of_thread))
    cpu_start = ffi.new("int32_t[]", starts)
    cpus = ffi.new("int32_t[]", [cpu for node in nodes for cpu in node] or [0])
    settings = ffi.new(
        "struct kt_cpu_placement *",
        {
            "threads": threads,
            "nodes": len(nodes),
            "node_of_thread": node_of_thread,
            "cpu_start": cpu_start,
            "cpus": cpus,
            "spin_us": SPIN_US,
        },
    )
    check(module.lib.kt_cpu_pool_set(settings), "the pool of CPU threads")
    _placement = placement
    return placement


def cancel() -> None:
    """Stop the native call that is running in another thread; it raises ``KernelError`` KT510."""
    native().lib.kt_cpu_cancel()
