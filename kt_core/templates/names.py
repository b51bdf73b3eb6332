"""Names that a plugin's distribution may have, and the import package that goes with each."""

from __future__ import annotations

import keyword
import re
import sys

from kt_core.errors import UsageError
from kt_core.registry.known import DISTRIBUTION_OF_PACKAGE

# PEP 508: ASCII letters and digits, with dots, underscores and hyphens between them.
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

_TAKEN = frozenset(
    {"cffi", "gguf", "jsonschema", "numpy", "pluggy", "pytest", "tests", "tokenizers", "torch"}
    | {"transformers", "triton", "yaml", "safetensors"}
)
"""Packages that are imported beside every plugin."""

MAX_LENGTH = 64


def package_of(name: str) -> str:
    """Return the import package of the distribution ``name``: ``kt-toy`` is ``kt_toy``.

    Raises:
        UsageError: KT740 if a plugin cannot have this name.
    """
    if not _DISTRIBUTION.fullmatch(name) or len(name) > MAX_LENGTH:
        raise _refused(name, "it is no name of a Python distribution")
    package = re.sub(r"[-_.]+", "_", name).lower()
    if not package.isidentifier() or keyword.iskeyword(package):
        raise _refused(name, f'the import package "{package}" would be no Python name')
    owner = DISTRIBUTION_OF_PACKAGE.get(package)
    if owner is not None or package.startswith("kt_core"):
        raise _refused(name, f"the names of {owner or 'kt-core'} belong to kt itself")
    if package in sys.stdlib_module_names or package in _TAKEN:
        raise _refused(name, f'a package "{package}" exists already')
    return package


def _refused(name: str, reason: str) -> UsageError:
    return UsageError.of(
        "KT740",
        f'a plugin cannot be called "{name}": {reason}',
        help="begin with a letter and use letters, digits and hyphens, such as kt-toy",
    )
