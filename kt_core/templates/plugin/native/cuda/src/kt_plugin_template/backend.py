"""Where the kernels run, on which stored types, and whether they can run here.

Imported whenever kt starts, so it imports nothing heavy.
"""

from __future__ import annotations

import ctypes
import importlib.resources
from contextlib import ExitStack
from functools import cache

from kt_core import Accepted, ProbeEnv, Rejected
from kt_core.errors import KernelError

DEVICES = ("cuda",)
FORMATS = ("Q8_0",)
ABI = 1

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_keep_open = ExitStack()


@cache
def native() -> ctypes.CDLL:
    """Return the compiled library.

    Raises:
        KernelError: KT591 if it is missing, damaged or belongs to another version.
    """
    way_out = "pip install --force-reinstall kt-plugin-template"
    file = importlib.resources.files("kt_plugin_template") / "libkt_plugin_template.so.1"
    try:
        path = _keep_open.enter_context(importlib.resources.as_file(file))
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError.of(
            "KT591",
            "the native library of kt-plugin-template cannot be loaded",
            facts=[f"{type(error).__name__}: {error}"],
            help=way_out,
        ) from error
    found = library.kt_plugin_template_abi()
    if found != ABI:
        raise KernelError.of(
            "KT591",
            f"the native library of kt-plugin-template has interface {found}, not {ABI}",
            help=way_out,
        )
    library.kt_plugin_template_linear.argtypes = (
        *(_POINTER, _POINTER, _POINTER),
        *(_SIZE, _SIZE, _SIZE),
        _POINTER,
    )
    return library


def probe(env: ProbeEnv) -> Accepted | Rejected:
    """Accept if the library loads. kt itself has checked that there is a GPU; this starts none."""
    try:
        native()
    except KernelError as error:
        problem = error.problems[0]
        return Rejected((problem.message, *problem.facts), problem.help or "")
    return Accepted("CUDA")
