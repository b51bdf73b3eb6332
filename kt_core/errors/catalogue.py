"""All documented codes, gathered from the ``codes_*.py`` modules on first use."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import kt_core.errors
from kt_core.errors.codes import Code

CODE_PATTERN = re.compile(r"KT[1-7][0-9]{2}")

AREAS: Mapping[str, str] = MappingProxyType(
    {
        "1": "rule files",
        "2": "plugins and the installation",
        "3": "plans",
        "4": "weight files",
        "5": "kernels",
        "6": "the server",
        "7": "commands and arguments",
    }
)
"""What the first digit of a code stands for."""


@cache
def codes() -> Mapping[str, Code]:
    """Return every documented code by its id, in order.

    Raises:
        ValueError: two modules document the same code, or an id is malformed.
    """
    gathered: dict[str, Code] = {}
    for module in pkgutil.iter_modules(kt_core.errors.__path__):
        if not module.name.startswith("codes_"):
            continue
        for code in importlib.import_module(f"kt_core.errors.{module.name}").CODES:
            if code.id in gathered or not CODE_PATTERN.fullmatch(code.id):
                raise ValueError(
                    f"{module.name} documents {code.id!r}, which is taken or malformed"
                )
            gathered[code.id] = code
    return MappingProxyType(dict(sorted(gathered.items())))


def find(word: str) -> Code | None:
    """Return the code a person means by ``KT210``, ``kt210`` or ``210``."""
    digits = word.strip().upper().removeprefix("KT")
    return codes().get(f"KT{digits}")
