"""Which plugins are installed: entry points read from metadata, nothing imported.

``importlib.metadata.entry_points`` is not used, because it hides what must be reported: of a
distribution that lies on the path twice it shows one copy, and one unreadable file ends the
listing.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution

from kt_core.registry.hookspecs import ENTRY_POINT_GROUP
from kt_core.registry.known import DISTRIBUTION_OF_PACKAGE
from kt_core.registry.records import PluginRecord, State

logger = logging.getLogger(__name__)

CORE_PLUGIN = "kt_core"
CORE_DISTRIBUTION = "kt-core"


@dataclass(frozen=True)
class Candidate:
    """A plugin that may be loaded. ``package`` is the import package its names must start with.

    An empty ``package`` (an object handed to ``Registry.of``) leaves the names unchecked. ``load``
    imports the registration module, or returns the object itself.
    """

    name: str
    distribution: str
    version: str
    module: str
    package: str
    load: Callable[[], object] = field(compare=False, repr=False)
    location: str = ""
    notes: tuple[str, ...] = ()

    def refused(
        self, state: State, code: str, reason: str, *, facts: tuple[str, ...] = (), help: str = ""
    ) -> PluginRecord:
        """Return the record of this candidate's refusal."""
        return replace(self.record(), state=state, code=code, reason=reason, facts=facts, help=help)

    def record(self) -> PluginRecord:
        """Return a record that says nothing but who this is."""
        return PluginRecord(
            self.name,
            self.distribution,
            self.version,
            self.module,
            self.package,
            notes=self.notes,
            location=self.location,
        )


def canonical(distribution: str) -> str:
    """Return the normalised form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def find_candidates(
    distributions: Iterable[Distribution] | None = None,
) -> tuple[list[Candidate], list[PluginRecord]]:
    """Return the loadable candidates and the records of those refused before any import.

    Both are sorted by distribution and name, whatever the order on ``sys.path``. The core is not
    among them: it is always there and needs no entry point to be found.
    """
    found: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    refused: list[PluginRecord] = []
    seen: set[tuple[str, str]] = set()
    for dist in importlib.metadata.distributions() if distributions is None else distributions:
        if not _declares_plugins(dist):
            continue
        name, version, location = _identity(dist)
        # The same folder may stand on sys.path twice; that is no second copy.
        if canonical(name) == CORE_DISTRIBUTION or (name, location) in seen:
            continue
        seen.add((name, location))
        try:
            points = [ep for ep in dist.entry_points if ep.group == ENTRY_POINT_GROUP]
        except (TypeError, ValueError) as error:
            refused.append(
                PluginRecord(
                    name,
                    name,
                    version,
                    "",
                    state=State.BROKEN,
                    code="KT211",
                    reason=f"its entry_points.txt cannot be read: {error}",
                    help=f"pip install --force-reinstall {name}",
                    location=location,
                )
            )
            continue
        for ep in points:
            module = ep.value.partition(":")[0].strip()
            found[canonical(name), ep.name].append(
                Candidate(
                    ep.name, name, version, ep.value, module.partition(".")[0], ep.load, location
                )
            )
    candidates, twice = _settle_copies(found)
    candidates, foreign = _refuse_foreign(candidates)
    return candidates, sorted([*refused, *twice, *foreign], key=_order)


def _order(item: Candidate | PluginRecord) -> tuple[str, str, str]:
    return canonical(item.distribution), item.name, item.version


def _declares_plugins(dist: Distribution) -> bool:
    try:
        return ENTRY_POINT_GROUP in (dist.read_text("entry_points.txt") or "")
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s: entry_points.txt is unreadable: %s", _identity(dist)[2], error)
        return False


def _identity(dist: Distribution) -> tuple[str, str, str]:
    """Name, version and folder; damaged metadata yields placeholders instead of an exception."""
    try:
        location = str(dist.locate_file(""))
    except (NotImplementedError, OSError):
        location = ""
    try:
        name, version = dist.metadata["Name"] or "", dist.version or ""
    except (KeyError, OSError, TypeError, UnicodeDecodeError):
        name = version = ""
    return name or "(unnamed distribution)", version or "(no version)", location.rstrip("/.")


def _settle_copies(
    found: dict[tuple[str, str], list[Candidate]],
) -> tuple[list[Candidate], list[PluginRecord]]:
    """Keep one of several equal copies, with a note; refuse copies that differ in version."""
    kept: list[Candidate] = []
    refused: list[PluginRecord] = []
    for copies in found.values():
        first = copies[0]  # the one that Python imports: first on sys.path
        if len(copies) == 1:
            kept.append(first)
            continue
        places = tuple(sorted(f"{c.distribution} {c.version} in {c.location}" for c in copies))
        if len({c.version for c in copies}) == 1:
            note = f"installed {len(copies)} times: {'; '.join(places)}"
            kept.append(replace(first, notes=(*first.notes, note)))
            continue
        versions = " and ".join(sorted({c.version for c in copies}))
        refused.append(
            first.refused(
                State.DUPLICATE,
                "KT213",
                f"{first.distribution} is installed in several versions, {versions}",
                facts=places,
                help=f"pip uninstall {first.distribution} until none is left; install it once",
            )
        )
    return sorted(kept, key=_order), refused


def _refuse_foreign(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[PluginRecord]]:
    """Refuse plugins that pose as the core or as one of our own distributions."""
    kept: list[Candidate] = []
    refused: list[PluginRecord] = []
    for candidate in candidates:
        owner = DISTRIBUTION_OF_PACKAGE.get(candidate.package)
        named = DISTRIBUTION_OF_PACKAGE.get(candidate.name)
        if owner is not None and owner != canonical(candidate.distribution):
            reason = f'the package "{candidate.package}" belongs to {owner}'
        elif named is not None and named != canonical(candidate.distribution):
            reason = f'the plugin name "{candidate.name}" belongs to {named}'
        else:
            kept.append(candidate)
            continue
        refused.append(
            candidate.refused(
                State.DUPLICATE,
                "KT213",
                f"{reason}, not to {candidate.distribution}",
                help=f"pip uninstall {candidate.distribution}",
            )
        )
    return kept, refused


def refuse_namesakes(
    candidates: Sequence[Candidate],
) -> tuple[list[Candidate], list[PluginRecord]]:
    """Refuse every plugin whose name two distributions use: neither has the better claim."""
    by_name: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_name[candidate.name].append(candidate)
    kept: list[Candidate] = []
    refused: list[PluginRecord] = []
    for name, same in by_name.items():
        if len(same) == 1:
            kept.append(same[0])
            continue
        owners = " and ".join(f"{c.distribution} {c.version}" for c in same)
        refused += [
            candidate.refused(
                State.DUPLICATE,
                "KT213",
                f'the plugin name "{name}" is used by {owners}',
                help=f"pip uninstall {same[-1].distribution}, or choose one: "
                f"KT_PLUGINS={same[0].distribution}",
            )
            for candidate in same
        ]
    return sorted(kept, key=_order), refused
