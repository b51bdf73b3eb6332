"""``KT_PLUGINS``: which of the installed plugins may load."""

from __future__ import annotations

from collections.abc import Sequence

from kt_core.errors import PluginError
from kt_core.registry.candidates import CORE_DISTRIBUTION, CORE_PLUGIN, Candidate, canonical
from kt_core.registry.records import PluginRecord, State

ALLOW_VARIABLE = "KT_PLUGINS"
"""Comma-separated plugins or distributions that may load besides the core; empty means none.

With a minus before each (``-toy``) it lists those that may not, and all others load.
"""


def allow(
    candidates: Sequence[Candidate], refused: Sequence[PluginRecord], setting: str | None
) -> tuple[list[Candidate], list[PluginRecord]]:
    """Return the candidates that may load, and the records of all others.

    ``setting`` is the variable's value, ``None`` when it is unset. A word that names nothing
    installed raises ``PluginError`` KT218: a misspelt list must not quietly switch a plugin off.
    """
    if setting is None:
        return list(candidates), list(refused)
    words = [part.strip() for part in setting.split(",") if part.strip()]
    without = [word for word in words if word.startswith("-")]
    if without and len(without) < len(words):
        raise _mixed(words)
    wanted = {canonical(word): word.removeprefix("-") for word in words}
    known = {canonical(CORE_PLUGIN), CORE_DISTRIBUTION}
    known.update(*map(_names, candidates), *map(_names, refused))
    if not wanted.keys() <= known:
        names = [CORE_PLUGIN, *(item.name for item in candidates), *(r.name for r in refused)]
        raise _unknown_words(wanted, known, names, "-" if without else "")

    def chosen(item: Candidate | PluginRecord) -> bool:
        return bool(_names(item) & wanted.keys()) != bool(without)

    allowed = [item for item in candidates if chosen(item)]
    records = [item for item in refused if chosen(item)]
    records += [
        item.refused(
            State.DISABLED,
            "KT217",
            f"{ALLOW_VARIABLE} leaves it out",
            help=f"take -{item.name} out of {ALLOW_VARIABLE}"
            if without
            else f"add {item.name} to {ALLOW_VARIABLE}, or unset it",
        )
        for item in candidates
        if not chosen(item)
    ]
    return allowed, records


def _names(item: Candidate | PluginRecord) -> set[str]:
    return {canonical(item.name), canonical(item.distribution)}


def _mixed(words: list[str]) -> PluginError:
    return PluginError.of(
        "KT218",
        f"{ALLOW_VARIABLE} lists both plugins that may load and plugins that may not",
        facts=[f"it is: {','.join(words)}"],
        help=f"{ALLOW_VARIABLE}={','.join(w for w in words if not w.startswith('-'))}",
    )


def _unknown_words(
    wanted: dict[str, str], known: set[str], names: list[str], sign: str
) -> PluginError:
    from kt_core.rules.suggest import did_you_mean

    missing = sorted(wanted.keys() - known)
    near = did_you_mean(missing[0], sorted(known))
    keep = sorted(wanted[key] for key in wanted.keys() & known)
    keep = [sign + word for word in (*keep, *((near,) if near else ()))]
    return PluginError.of(
        "KT218",
        f"{ALLOW_VARIABLE} names what is not installed: "
        + ", ".join(f'"{wanted[key]}"' for key in missing),
        facts=[f"installed: {', '.join(sorted(set(names)))}"],
        help=f"{ALLOW_VARIABLE}={','.join(keep)}" if keep else f"unset {ALLOW_VARIABLE}",
    )
