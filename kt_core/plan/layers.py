"""What rules say about the decoder layers as a stack, and which device each layer belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kt_core.errors import Location, Problem, UsageError
from kt_core.plan.devices import canonical
from kt_core.plan.model import ModulePlan
from kt_core.rules.match import ModuleMatch

THRESHOLD = "per_layer_prefill_intput_threshold"
"""KTransformers' name, spelt as there, for the number of tokens from which on prefill goes layer by layer."""


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


@dataclass(frozen=True)
class Stack:
    """What one rule says about all decoder layers together. ``path`` is that of the stack.

    ``transfer`` is layer number -> device of that layer and those after it, as written by KTransformers.
    ``layerwise``: prefill kernels of its layers are loaded for long prompts only, one layer at a time.
    """

    path: str = "model"
    transfer: Mapping[int, str] = field(default_factory=dict)
    layerwise: bool = False

    def device_of(self, path: str, default: str) -> str:
        """Where a module goes whose rules do not say it."""
        layer = self._layer(path)
        return default if layer is None else self.device_of_layer(layer) or default

    def device_of_layer(self, layer: int) -> str | None:
        """The device that ``transfer`` names for a layer; ``None`` for those before its first."""
        starts = [start for start in self.transfer if start <= layer]
        return self.transfer[max(starts)] if starts else None

    def streams(self, path: str) -> bool:
        """Whether the module's prefill kernel is loaded for long prompts only."""
        return self.layerwise and self._layer(path) is not None

    def _layer(self, path: str) -> int | None:
        if not path.startswith(f"{self.path}.layers."):
            return None
        number = path[len(self.path) + 8 :].partition(".")[0]
        return int(number) if number.isdigit() else None


def stack_of(matches: Iterable[ModuleMatch]) -> Stack:
    """Find the rule that speaks of the decoder layers as a whole; an empty one if there is none."""
    for match in matches:
        transfer, threshold = match.kwargs.get("transfer_map"), match.kwargs.get(THRESHOLD)
        if transfer or threshold:
            return Stack(match.path, dict(_devices(transfer or {})), bool(threshold))
    return Stack()


def _devices(transfer: Mapping[Any, Any]) -> Iterator[tuple[int, str]]:
    for layer, written in transfer.items():
        try:
            yield int(layer), canonical(str(written))
        except (UsageError, ValueError):
            continue  # the schema reports it


def check_transfer_map(
    stack: Stack, modules: Iterable[ModulePlan], layers: int, place: Location
) -> list[Problem]:
    """Report KT332 where a ``transfer_map`` contradicts the devices that the rules give."""
    actual = layer_devices(modules)
    problems = []
    starts = sorted(stack.transfer)
    for start, end in zip(starts, [*starts[1:], layers], strict=True):
        wanted = stack.transfer[start]
        if start >= layers:
            problems.append(
                Problem(
                    "KT332",
                    f"transfer_map moves to {wanted} at layer {start}, but the model has {layers} layers",
                    place,
                    help="delete that entry",
                )
            )
            continue
        wrong = [
            layer
            for layer in range(start, end)
            if actual.get(f"{stack.path}.layers.{layer}", wanted) != wanted
        ]
        if wrong:
            found = actual[f"{stack.path}.layers.{wrong[0]}"]
            problems.append(
                Problem(
                    "KT332",
                    f"transfer_map puts layer {wrong[0]} on {wanted}, but other rules put it on {found}",
                    place,
                    (f"layers that differ: {len(wrong)} of {start} to {end - 1}",),
                    f"delete transfer_map, or place layer {wrong[0]} on {wanted}",
                )
            )
    return problems
