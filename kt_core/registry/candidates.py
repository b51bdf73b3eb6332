"""Which plugins are installed and may be loaded: decided from metadata, nothing imported."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kt_core.registry.hookspecs import ENTRY_POINT_GROUP
from kt_core.registry.installed import Installed, installed_with
from kt_core.registry.known import DISTRIBUTION_OF_PACKAGE
from kt_core.registry.records import PluginRecord, State

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
    editable: bool = False

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


def canonical(name: str) -> str:
    """Return the normalised form of a distribution's name (PEP 503)."""
    words = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(word for word in words if word)


def find_candidates(
    distributions: Sequence[Installed] | None = None,
) -> tuple[list[Candidate], list[PluginRecord]]:
    """Return the loadable candidates and the records of those refused before any import.

    Both are sorted by distribution and name, whatever the order on ``sys.path``. The core is not
    among them: it is always there and needs no entry point to be found.
    """
    found: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    unreadable: list[PluginRecord] = []
    if distributions is None:
        distributions = installed_with(ENTRY_POINT_GROUP)
    for dist in distributions:
        if canonical(dist.name) == CORE_DISTRIBUTION:
            continue
        if dist.fault:
            base = PluginRecord(dist.name, dist.name, dist.version, "", location=dist.location)
            unreadable.append(
                replace(
                    base,
                    state=State.BROKEN,
                    code="KT211",
                    reason=f"its entry_points.txt is malformed: {dist.fault}",
                    help=f"pip install --force-reinstall {dist.name}",
                )
            )
        for name, value in dist.points.items():
            found[canonical(dist.name), name].append(_candidate(dist, name, value))
    candidates, twice = _settle_copies(found)
    candidates, foreign = _refuse_foreign(candidates)
    return candidates, sorted([*unreadable, *twice, *foreign], key=_order)


def _candidate(dist: Installed, name: str, value: str) -> Candidate:
    module, _, path = (part.strip() for part in value.partition(":"))
    package = module.partition(".")[0]

    def load() -> object:
        target: object = importlib.import_module(module)
        for part in path.split(".") if path else ():
            target = getattr(target, part)
        return target

    return Candidate(
        name,
        dist.name,
        dist.version,
        value,
        package,
        load,
        dist.location,
        editable=dist.editable,
    )


def _order(item: Candidate | PluginRecord) -> tuple[str, str, str]:
    return canonical(item.distribution), item.name, item.version


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
