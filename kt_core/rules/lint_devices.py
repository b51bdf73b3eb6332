"""Devices that a rule names: are they well-formed."""

from __future__ import annotations

from typing import Any

from kt_core.devices.kinds import known_kinds
from kt_core.rules import devices
from kt_core.rules.fields import PLACEMENT_KWARGS
from kt_core.rules.problems import Problems
from kt_core.rules.replacement import Replacement
from kt_core.rules.schema_check import shown
from kt_core.rules.text import show


def check_devices(replace: Replacement, problems: Problems) -> dict[str, str]:
    """Check every device name; return the device type of each kwarg that has a good one."""
    kinds: dict[str, str] = {}
    for name in PLACEMENT_KWARGS:
        if name in replace.kwargs:
            kind = check_device(replace, name, name, problems)
            if kind is not None:
                kinds[name] = kind
    transfer = replace.kwargs.get("transfer_map")
    if isinstance(transfer, dict):
        for layer in transfer:
            check_device(replace, f"transfer_map.{layer}", f"transfer_map, layer {layer}", problems)
    return kinds


def check_device(replace: Replacement, key: str, name: str, problems: Problems) -> str | None:
    """Check the device under ``key``, called ``name`` in messages; return its type if it is one."""
    value = replace.kwargs[key] if key in replace.kwargs else _layer_device(replace.kwargs, key)
    where = replace.value(key)
    kind = devices.kind_of(value) if isinstance(value, str) else None
    if kind is not None:
        return kind
    meant = devices.meant_by(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        meant = f"cuda:{value}"
    others = [kind for kind in known_kinds() if kind not in ("cpu", "cuda")]
    facts = [f"devices: cpu, cuda, cuda:0, cuda:1, …, {', '.join(others)}"]
    if value == "meta":
        meant = "cpu"
        facts = ["meta is where models are built without memory; nothing can run there"]
    replace.bad_devices.add(where)
    problems.add(
        "KT135",
        f"{name}: {shown(value)} is not a device",
        where,
        facts=facts,
        help=_device_help(name, meant),
    )
    return None


def _device_help(name: str, meant: str | None) -> str:
    if meant is None:
        return "name a device, or leave the key out for the default one"
    return f"write {meant}" if " " in name else f"{name}: {show(meant)}"


def _layer_device(kwargs: dict[str, Any], key: str) -> Any:
    return kwargs["transfer_map"][int(key.partition(".")[2])]
