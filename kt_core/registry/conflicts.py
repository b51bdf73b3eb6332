"""Settle names that more than one plugin claims, in a way that no load order can change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kt_core.registry.candidates import CORE_PLUGIN
from kt_core.registry.loading import LoadedPlugin
from kt_core.registry.records import BROUGHT, PluginRecord, State
from kt_core.registry.validation import claims_of


def settle(loaded: Sequence[LoadedPlugin]) -> tuple[list[LoadedPlugin], list[PluginRecord]]:
    """Return the plugins without conflicts, and records of the others.

    A name belongs to the core if the core has it, else to the plugin whose package it starts with.
    Of other plugins that claim one name none is kept, since none has the better claim and a rule
    that uses the name must not depend on which came first.
    """
    claims: dict[tuple[str, str], list[LoadedPlugin]] = defaultdict(list)
    for plugin in loaded:
        for field in BROUGHT:
            for spec in getattr(plugin.record, field):
                for claim in claims_of(field, spec):
                    claims[claim].append(plugin)
    losers: dict[str, list[str]] = defaultdict(list)
    for (what, name), owners in sorted(claims.items()):
        if len(owners) > 1:
            for loser, reason in _losers(f'the {what} name "{name}"', name, owners):
                losers[loser].append(reason)
    kept = [plugin for plugin in loaded if plugin.record.name not in losers]
    refused = [
        _refuse(plugin.record, losers[plugin.record.name])
        for plugin in loaded
        if plugin.record.name in losers
    ]
    return kept, refused


def _losers(claim: str, name: str, owners: list[LoadedPlugin]) -> Iterator[tuple[str, str]]:
    """Yield the plugins that may not have ``name``, and why."""
    records = [owner.record for owner in owners]
    core = [record for record in records if record.name == CORE_PLUGIN]
    rightful = core or [record for record in records if name.startswith(f"{record.package}.")]
    for record in records:
        if len(rightful) == 1:
            if record is not rightful[0]:
                owner = "the core" if core else rightful[0].label
                yield record.name, f"{claim} belongs to {owner}"
        else:
            others = " and ".join(other.label for other in records if other is not record)
            yield record.name, f"{claim} is registered by {record.label} and by {others}"


def _refuse(record: PluginRecord, reasons: list[str]) -> PluginRecord:
    nothing: Any = dict.fromkeys(BROUGHT, ())
    return replace(
        record,
        state=State.DUPLICATE,
        code="KT213",
        reason=reasons[0],
        facts=tuple(reasons[1:]),
        help=f"pip uninstall {record.distribution}, or leave one of the two out with KT_PLUGINS",
        **nothing,
    )
