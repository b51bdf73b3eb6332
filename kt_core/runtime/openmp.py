"""Keep torch's OpenMP threads from spinning while a kernel's own threads work.

After a parallel region GNU OpenMP's threads spin for up to a millisecond, waiting for the next one. A
kernel distribution with its own thread pool then shares the cores with them: on two cores SmolLM2's
prefill fell to an eighth. Sleeping instead costs some microseconds per region.
"""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger(__name__)

VARIABLE = "OMP_WAIT_POLICY"


def let_openmp_sleep() -> bool:
    """Set ``OMP_WAIT_POLICY=passive`` unless the user chose; return whether it will have an effect.

    OpenMP reads the variable when torch is imported, so this module must come first. ``import
    kt_core`` before ``import torch`` does not suffice; ``kt_core.load`` imported first does.
    """
    if VARIABLE in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return True
    if "torch" in sys.modules:
        logger.info(
            "torch was imported before kt_core.runtime; %s=passive in the environment keeps its "
            "threads from disturbing compiled kernels",
            VARIABLE,
        )
        return False
    os.environ[VARIABLE] = "passive"
    return True
