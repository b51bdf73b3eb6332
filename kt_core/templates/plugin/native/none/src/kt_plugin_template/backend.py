"""Where the kernels run, on which stored types, and whether they can run here.

Imported whenever kt starts, so it imports nothing heavy.
"""

from __future__ import annotations

from kt_core import Accepted, ProbeEnv, Rejected

DEVICES = ("cpu", "cuda")
FORMATS = ("*",)  # all that kt can dequantise


def probe(env: ProbeEnv) -> Accepted | Rejected:
    """Accept: torch runs wherever kt does; that the device exists is checked by kt itself."""
    return Accepted("torch")
