"""What this machine can do, measured with the kernels' own threads and instructions."""

from __future__ import annotations

from dataclasses import dataclass

from kt_ops_cpu.library import check, native, variant
from kt_ops_cpu.pool import ensure_pool


@dataclass(frozen=True)
class Limits:
    """The floor under every time: bytes at ``read_gb_per_s``, int8 operations at ``int8_gops``.

    A multiplication and an addition count as two operations. ``int8_gops`` is that of the vector
    instruction, also where the variant has matrix instructions, and 0 for plain C.
    """

    variant: str
    threads: int
    read_gb_per_s: float
    int8_gops: float

    def by_name(self) -> dict[str, float]:
        """The numbers alone, as :meth:`kt_core.operators.kernel.Kernel.limits` gives them."""
        found = {"read_gb_per_s": self.read_gb_per_s, "int8_gops": self.int8_gops}
        return {name: value for name, value in found.items() if value}


def measure_limits(nbytes: int = 1 << 29, runs: int = 5) -> Limits:
    """Read ``nbytes`` of memory and multiply bytes, ``runs`` times each; return the best.

    Raises:
        KernelError: KT508 if there is no such memory.
    """
    threads = len(ensure_pool().node_of_thread)
    module = native()
    out = module.ffi.new("double[2]")
    check(module.lib.kt_cpu_measure(nbytes, runs, out, out + 1), "measuring the machine")
    return Limits(variant(), threads, out[0], out[1])
