"""The installed distributions that declare entry points of ours, read from metadata.

``importlib.metadata.entry_points`` would do, but it hides what must be reported (of a distribution
that lies on the path twice it shows one copy, and one unreadable file ends the listing), and its
import takes longer than everything else that discovery does. Folders on ``sys.path``, which is
where distributions are, are read directly; anything else is left to ``importlib.metadata``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Installed(NamedTuple):
    """A distribution: its name, version, the folder it lies in, and ``{entry point: value}``.

    ``fault`` says why its entry points cannot be read, empty if they can. ``egg`` marks the older
    form of metadata, an ``.egg-info`` folder, ``editable`` an installation that runs from its sources
    and may build itself at import.
    """

    name: str
    version: str
    location: str
    points: dict[str, str]
    fault: str = ""
    egg: bool = False
    editable: bool = False


def installed_with(group: str, path: Sequence[str] | None = None) -> list[Installed]:
    """Return the distributions with entry points in ``group``, in the order of ``path``.

    ``path`` is ``sys.path`` unless given. Damaged metadata yields placeholders, never an exception.
    """
    found: list[Installed] = []
    others: list[str] = []
    for entry in dict.fromkeys(sys.path if path is None else path):
        folder = entry or "."
        if os.path.isdir(folder):
            found += _in_folder(folder, group)
        elif os.path.isfile(folder):
            others.append(folder)
    if others or (path is None and _foreign_finders()):
        found += _elsewhere(group, others, {item.location for item in found})
    # An editable install leaves an egg-info beside its sources, which is no second copy.
    proper = {(item.name, item.version) for item in found if not item.egg}
    return [item for item in found if not (item.egg and (item.name, item.version) in proper)]


def _in_folder(folder: str, group: str) -> Iterator[Installed]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        stem, dot, kind = name.rpartition(".")
        if not dot or kind not in ("dist-info", "egg-info"):
            continue
        metadata = os.path.join(folder, name)
        try:
            with open(os.path.join(metadata, "entry_points.txt"), encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            _warn(metadata, error)
            continue
        if group in text:
            item = _installed(text, group, folder, *_identity(metadata, stem))
            yield item._replace(egg=kind == "egg-info", editable=_editable(metadata))


def _editable(metadata: str) -> bool:
    """Whether pip notes (PEP 610) that the distribution runs from its sources."""
    try:
        with open(os.path.join(metadata, "direct_url.json"), encoding="utf-8") as file:
            return re.search(r'"editable"\s*:\s*true', file.read()) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _identity(metadata: str, stem: str) -> tuple[str, str]:
    """Return name and version from the metadata file, or else from the folder's name."""
    for file_name in ("METADATA", "PKG-INFO"):
        try:
            with open(
                os.path.join(metadata, file_name), encoding="utf-8", errors="replace"
            ) as file:
                head = file.read(4096)
        except OSError:
            continue
        fields = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", head, re.MULTILINE))
        if len(fields) == 2:
            return fields["Name"], fields["Version"]
    name, _, version = stem.partition("-")
    return name, version or "(no version)"


def _installed(text: str, group: str, location: str, name: str, version: str) -> Installed:
    """Read the ini-like ``entry_points.txt``; extras after a value are dropped as obsolete."""
    points: dict[str, str] = {}
    section = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif line and not line.startswith(("#", ";")) and section == group:
            key, equals, value = (part.strip() for part in line.partition("="))
            if not (key and equals and value):
                return Installed(name, version, location, {}, f"{line!r} is not name = module")
            if key in points:
                return Installed(name, version, location, {}, f"{key!r} is declared twice")
            points[key] = value.partition("[")[0].strip()
    return Installed(name, version, location, points)


def _foreign_finders() -> bool:
    """Whether anything besides folders on the path can bring distributions."""
    return any(
        hasattr(finder, "find_distributions") and getattr(finder, "__name__", "") != "PathFinder"
        for finder in sys.meta_path
    )


def _elsewhere(group: str, files: list[str], known: set[str]) -> Iterator[Installed]:
    """Yield what only ``importlib.metadata`` finds: zip files and finders of other tools."""
    import importlib.metadata

    distributions = (
        importlib.metadata.distributions()
        if _foreign_finders()
        else importlib.metadata.distributions(path=files)
    )
    for dist in distributions:
        try:
            location = str(dist.locate_file("")).rstrip("/.")
            text = dist.read_text("entry_points.txt") or ""
            name, version = dist.metadata["Name"], dist.version
        except (KeyError, NotImplementedError, OSError, TypeError, UnicodeDecodeError) as error:
            _warn("a distribution", error)
            continue
        if group in text and location not in known:
            yield _installed(text, group, location, name or "(unnamed)", version or "(no version)")


def _warn(what: str, error: Exception) -> None:
    """Say that something is passed over: it may or may not have been a plugin of ours."""
    import logging  # 2 ms, and not needed at every start

    logging.getLogger(__name__).warning("%s: its entry points cannot be read: %s", what, error)
