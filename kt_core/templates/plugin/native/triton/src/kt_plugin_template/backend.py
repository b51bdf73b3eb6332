"""Where the kernels run, on which stored types, and whether they can run here.

Imported whenever kt starts, so it imports nothing heavy.
"""

from __future__ import annotations

from importlib import metadata

from kt_core import Accepted, ProbeEnv, Rejected

DEVICES = ("cuda",)
FORMATS = ("Q8_0",)


def probe(env: ProbeEnv) -> Accepted | Rejected:
    """Accept if Triton is installed. kt itself has checked that there is a GPU; this starts none."""
    try:
        return Accepted(f"Triton {metadata.version('triton')}")
    except metadata.PackageNotFoundError:
        return Rejected(("triton is not installed",), "pip install triton")
