"""Which device each decoder layer belongs to, and whether a transfer_map says the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kt_core.errors import Location, Problem, Severity, UsageError
from kt_core.plan.devices import canonical
from kt_core.plan.model import ModulePlan


def layer_devices(modules: Iterable[ModulePlan]) -> dict[str, str]:
    """Path of each decoder layer and its device: where its norms are, for they stand between all parts.

    Modules with kernels do their own moving, so they have no say.
    """
    votes: dict[str, Counter[str]] = {}
    for module in modules:
        parts = module.path.split(".")
        if module.decode is None and module.resident and len(parts) > 3 and parts[1] == "layers":
            weight = 10 if "norm" in parts[-1] and len(parts) == 4 else 1
            votes.setdefault(".".join(parts[:3]), Counter())[module.device] += weight
    return {path: counter.most_common(1)[0][0] for path, counter in votes.items()}


def check_transfer_map(
    kwargs: Mapping[str, Any], modules: Iterable[ModulePlan], place: Location
) -> list[Problem]:
    """Warn where a KTransformers ``transfer_map`` contradicts the devices that the rules gave."""
    devices = {path.rpartition(".")[2]: device for path, device in layer_devices(modules).items()}
    problems = []
    for layer, written in (kwargs.get("transfer_map") or {}).items():
        try:
            wanted = canonical(str(written))
        except UsageError:
            continue  # the schema reports it
        actual = devices.get(str(layer))
        if actual is None or actual == wanted:
            continue
        problems.append(
            Problem(
                "KT332",
                f"transfer_map moves to {wanted} at layer {layer}, but that layer is on {actual}",
                place,
                help=f"delete transfer_map, or place layer {layer} on {wanted}",
                severity=Severity.WARNING,
            )
        )
    return problems
