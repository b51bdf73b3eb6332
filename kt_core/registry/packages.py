"""Versions of installed packages, read from metadata without importing them."""

from __future__ import annotations

import re

from kt_core import __version__
from kt_core.errors import Problem

_REQUIREMENT = r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*([<>=!~0-9.,\s]*)"
_BOUND = r"(>=|<)\s*([0-9]+(?:\.[0-9]+)*)"


def installed_version(name: str) -> str | None:
    """Return the version of distribution ``name``, ``None`` if it is not installed."""
    import importlib.metadata  # 7 ms, and not needed at every start

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def out_of_range() -> list[Problem]:
    """Return a KT221 for every package kt-core names whose installed version it rules out.

    Missing ones are not reported: what is required cannot be missing here, and extras are optional.
    """
    import importlib.metadata

    try:
        requirements = importlib.metadata.requires("kt-core") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return []
    problems = []
    for text in requirements:
        requirement, _, marker = text.partition(";")
        parsed = re.match(_REQUIREMENT, requirement)
        if parsed is None or re.search(r"extra == .dev.", marker):
            continue
        bounds = parsed.group(2).replace(" ", "").split(",")
        name, specifier = parsed.group(1), ",".join(sorted(bounds, reverse=True))
        version = installed_version(name)
        if version is not None and not within(version, specifier):
            need = f"kt-core {__version__} needs {name} {specifier}"
            problems.append(
                Problem(
                    "KT221",
                    f"{name} {version} is installed; {need}",
                    help=f'pip install "{name}{specifier}"',
                )
            )
    return problems


def within(version: str, specifier: str) -> bool:
    """Return whether ``version`` meets bounds such as ``>=5.17,<6``.

    Only ``>=`` and ``<`` are judged. Versions are compared by their release numbers, so that a
    pre-release counts as its release.
    """
    release = _release(version)
    for operator, bound in re.findall(_BOUND, specifier):
        limit = _release(bound)
        width = max(len(release), len(limit))
        left, right = (part + (0,) * (width - len(part)) for part in (release, limit))
        if (left < right) if operator == ">=" else (left >= right):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()
