"""Where the kernels run, on which stored types, and whether they can run here.

Imported whenever kt starts, so it imports nothing heavy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kt_core import Accepted, ProbeEnv, Rejected
from kt_core.errors import KernelError

DEVICES = ("cpu",)
FORMATS = ("Q8_0",)
ABI = 1


@cache
def native() -> Any:
    """Return the compiled module (``ffi``, ``lib``).

    Raises:
        KernelError: KT591 if it is missing, damaged or belongs to another version.
    """
    way_out = "pip install --force-reinstall kt-plugin-template"
    try:
        from kt_plugin_template import _native
    except ImportError as error:
        raise KernelError.of(
            "KT591",
            "the native library of kt-plugin-template cannot be loaded",
            facts=[f"{type(error).__name__}: {error}"],
            help=way_out,
        ) from error
    found = _native.lib.kt_plugin_template_abi()
    if found != ABI:
        raise KernelError.of(
            "KT591",
            f"the native library of kt-plugin-template has interface {found}, not {ABI}",
            help=way_out,
        )
    return _native


def probe(env: ProbeEnv) -> Accepted | Rejected:
    """Accept if the library loads; it is compiled for any CPU of its kind."""
    try:
        native()
    except KernelError as error:
        problem = error.problems[0]
        return Rejected((problem.message, *problem.facts), problem.help or "")
    return Accepted("C")
