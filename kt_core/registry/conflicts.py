"""Settle names that more than one plugin claims, in a way that no load order can change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from kt_core.registry.candidates import CORE_PLUGIN
from kt_core.registry.loading import LoadedPlugin
from kt_core.registry.records import PluginRecord, State
from kt_core.registry.validation import names_of


def settle(loaded: Sequence[LoadedPlugin]) -> tuple[list[LoadedPlugin], list[PluginRecord]]:
    """Return the plugins without conflicts, and records of the others.

    The core's names are its own. Of two other plugins that claim one name neither is kept, since
    neither has the better claim and a rule that uses the name must not depend on which came first.
    """
    claims: dict[tuple[str, str], list[LoadedPlugin]] = defaultdict(list)
    for plugin in loaded:
        record = plugin.record
        for what, specs in (("operator", record.operators), ("kernel", record.kernels)):
            for spec in specs:
                for name in names_of(spec):
                    claims[what, name].append(plugin)
    losers: dict[str, list[tuple[str, PluginRecord]]] = defaultdict(list)
    for (what, name), owners in sorted(claims.items()):
        if len(owners) == 1:
            continue
        for owner in owners:
            if owner.record.name == CORE_PLUGIN:
                continue
            others = [other.record for other in owners if other is not owner]
            core = next((other for other in others if other.name == CORE_PLUGIN), None)
            losers[owner.record.name].append((f'the {what} name "{name}"', core or others[0]))
    kept = [plugin for plugin in loaded if plugin.record.name not in losers]
    refused = [
        _refuse(plugin.record, losers[plugin.record.name])
        for plugin in loaded
        if plugin.record.name in losers
    ]
    return kept, refused


def _refuse(record: PluginRecord, conflicts: list[tuple[str, PluginRecord]]) -> PluginRecord:
    lines = [
        f"{name} belongs to the core"
        if other.name == CORE_PLUGIN
        else f"{name} is registered by {record.label} and by {other.label}"
        for name, other in conflicts
    ]
    return replace(
        record,
        state=State.DUPLICATE,
        code="KT213",
        reason=lines[0],
        facts=tuple(lines[1:]),
        help=f"pip uninstall {record.distribution}, or leave one of the two out with KT_PLUGINS",
        operators=(),
        kernels=(),
        rules=(),
    )
