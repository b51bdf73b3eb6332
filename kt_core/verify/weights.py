"""Weights alone: what the adapter makes of the file, and what modules hold once they are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from kt_core.plan.model import ModulePlan, Plan
from kt_core.runtime.bound_weights import BoundWeights
from kt_core.verify import report
from kt_core.verify.compare import (
    BROKEN,
    DTYPE_BOUNDS,
    OK,
    Bound,
    describe_weight,
    difference,
    judge,
)
from kt_core.verify.reference import Reference, holds_experts
from kt_core.verify.report import Finding
from kt_core.verify.truth import Truth
from kt_core.weights import LAYOUTS, QuantType, WeightSource

_SAME = Bound(1e-5, "the same stored values, moved about")
_ROWS = 4096
_VALUES = 1 << 26
"""Of more values than that a sample is compared: rows, or whole experts, evenly spread."""


class WeightsCheck:
    """Compares every module's weights by its plan with the reference's reading of the file."""

    def __init__(
        self, plan: Plan, source: WeightSource, reference: Reference, checkpoint: Truth | None
    ) -> None:
        self._plan = plan
        self._source = source
        self._reference = reference
        self._checkpoint = checkpoint
        self._dtype = DTYPE_BOUNDS[plan.dtype]

    def adapter(self, name: str) -> torch.Tensor | None:
        """A parameter as the adapter makes it; the reference's last resort."""
        path, _, last = name.rpartition(".")
        module = self._plan.module(path)
        if module is None:
            return None
        if module.experts is not None:
            return self._fused(module, last)
        packed = BoundWeights(module, self._source).packed(last)
        return None if packed is None else torch.from_numpy(packed.dequantize())

    def check(self, module: ModulePlan, loaded: nn.Module) -> Iterator[Finding]:
        """Yield what there is to say about one module; ``loaded`` is what stands at its path."""
        if module.experts is not None:
            yield from self._experts(module)
            return
        weights = BoundWeights(module, self._source)
        kept = module.decode is None
        for binding in module.bindings:
            name = binding.parameter
            last = name.rpartition(".")[2]
            shape = self._shape(name)
            packed = weights.packed(last)
            if packed is None or shape is None:
                continue
            if holds_experts(self._reference.model.get_submodule(module.path)):
                expected = self._whole_experts(module.path, last, shape[0])
                rows: Any = None
            else:
                rows = _sample(name, shape)
                expected = self._reference.truth.parameter(name, shape, rows)
            if expected is None:
                continue
            found = torch.from_numpy((packed if rows is None else packed.rows(rows)).dequantize())
            yield self._same(module, name, found.reshape(expected.shape), expected)
            if kept:
                yield from self._loaded(module, loaded, last, expected, rows)
            yield from self._original(module, name, shape, expected, rows, packed.type)

    def _same(
        self, module: ModulePlan, name: str, found: torch.Tensor, expected: torch.Tensor
    ) -> Finding:
        apart = difference(found, expected)
        verdict = judge(apart, _SAME)
        notes = []
        if verdict != OK:
            verdict = BROKEN  # nothing was rounded, so there is nothing in between
            how = describe_weight(found, expected, self._siblings(name, expected.shape))
            notes.append(f"{name.rpartition('.')[2]}: {how or 'other values than the file says'}")
        if apart.both_missing:
            notes.append(f"the file itself holds {apart.both_missing} values that are not finite")
            verdict = BROKEN
        return self._finding(module, report.WEIGHTS, apart, _SAME, verdict, notes)

    def _loaded(
        self,
        module: ModulePlan,
        loaded: nn.Module,
        last: str,
        expected: torch.Tensor,
        rows: Any,
    ) -> Iterator[Finding]:
        held = dict(loaded.named_parameters(recurse=False)) | dict(
            loaded.named_buffers(recurse=False)
        )
        if last not in held:
            return
        found = held[last].detach()
        found = found if rows is None else found[torch.from_numpy(rows).to(found.device)]
        found = found.to("cpu", torch.float32).reshape(expected.shape)
        apart = difference(found, expected)
        verdict = judge(apart, self._dtype)
        notes = []
        if verdict != OK:
            how = describe_weight(found, expected, {})
            notes.append(f"{last} in memory: {how or 'other values than were loaded'}")
        yield self._finding(module, report.LOADED, apart, self._dtype, verdict, notes)

    def _experts(self, module: ModulePlan) -> Iterator[Finding]:
        path = module.path
        original = self._reference.model.get_submodule(path)
        count = int(next(original.parameters()).shape[0])
        numbers = _some_experts(count, sum(p.numel() for p in original.parameters()) // count)
        weights = BoundWeights(module, self._source).experts()
        truth = self._reference.truth
        both = truth.experts(path, "gate_up_proj", numbers, columns=False)
        down = truth.experts(path, "down_proj", numbers, columns=False)
        if both is None or down is None:
            return
        gate, up = both.chunk(2, dim=1)
        expected = {"gate": gate, "up": up, "down": down}
        biases = truth.experts(path, "gate_up_proj_bias", numbers, columns=False)
        if biases is not None:
            expected["gate_bias"], expected["up_bias"] = biases.chunk(2, dim=1)
        down_bias = truth.experts(path, "down_proj_bias", numbers, columns=False)
        if down_bias is not None:
            expected["down_bias"] = down_bias
        for part, values in expected.items():
            given = getattr(weights, part)
            if given is None:
                found = torch.zeros_like(values)
            elif part.endswith("_bias"):
                found = given[list(numbers)]
            else:
                found = torch.stack([torch.from_numpy(given[n].dequantize()) for n in numbers])
            apart = difference(found, values)
            verdict, notes = judge(apart, _SAME), []
            if verdict != OK:
                others = {f"its {k} weights": v for k, v in expected.items() if k != part}
                how = describe_weight(found, values, others)
                notes.append(f"{part}: {how or 'other values than the file says'}")
                verdict = BROKEN
            if len(numbers) < count:
                notes.append(f"{len(numbers)} of {count} experts were compared")
            yield self._finding(module, report.WEIGHTS, apart, _SAME, verdict, notes)
            if self._checkpoint is not None and not part.endswith("_bias"):
                yield from self._original_experts(module, part, numbers, values)

    def _original(
        self,
        module: ModulePlan,
        name: str,
        shape: Sequence[int],
        expected: torch.Tensor,
        rows: Any,
        kind: QuantType,
    ) -> Iterator[Finding]:
        """Against the checkpoint the file was made from, as far as its quantisation allows."""
        if self._checkpoint is None:
            return
        path, _, last = name.rpartition(".")
        if holds_experts(self._reference.model.get_submodule(path)):
            original = self._checkpoint.experts(
                path, last, range(shape[0]), columns=self._reference.columns
            )
        else:
            original = self._checkpoint.parameter(name, shape, rows)
        if original is None:
            return
        yield self._against_checkpoint(module, name, expected, original, kind)

    def _original_experts(
        self, module: ModulePlan, part: str, numbers: Sequence[int], expected: torch.Tensor
    ) -> Iterator[Finding]:
        if self._checkpoint is None or self._reference.columns:
            return
        fused = "down_proj" if part == "down" else "gate_up_proj"
        original = self._checkpoint.experts(module.path, fused, numbers, columns=False)
        if original is None:
            return
        if part != "down":
            original = original.chunk(2, dim=1)[part == "up"]
        kind = QuantType(module.types[0]) if module.types else QuantType.F32
        coarsest = min(map(QuantType, module.types), key=_bits, default=kind)
        yield self._against_checkpoint(module, part, expected, original, coarsest)

    def _against_checkpoint(
        self,
        module: ModulePlan,
        name: str,
        found: torch.Tensor,
        original: torch.Tensor,
        kind: QuantType,
    ) -> Finding:
        bound = quantisation_bound(kind)
        apart = difference(found, original)
        verdict, notes = judge(apart, bound), []
        if verdict != OK:
            how = describe_weight(found, original, {})
            notes.append(
                f"{name.rpartition('.')[2]} in the file: {how or 'not what the checkpoint holds'}"
            )
        return self._finding(module, report.REFERENCE, apart, bound, verdict, notes)

    @staticmethod
    def _finding(
        module: ModulePlan, what: str, apart: Any, bound: Bound, verdict: str, notes: Sequence[str]
    ) -> Finding:
        return Finding(
            module.path,
            module.class_name,
            module.operator,
            what,
            apart.relative,
            apart.worst,
            bound.relative,
            bound.why,
            verdict,
            tuple(notes),
        )

    def _siblings(self, name: str, shape: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """Parameters of the same layer and shape, one of which may have been taken instead."""
        parts = name.split(".")
        if parts[:2] != ["model", "layers"]:
            return {}
        layer = ".".join(parts[:3])
        found = {}
        for other, parameter in self._reference.model.get_submodule(layer).named_parameters():
            full = f"{layer}.{other}"
            if full != name and tuple(parameter.shape) == tuple(shape) and parameter.dim() < 3:
                values = self._reference.truth.parameter(full, parameter.shape)
                if values is not None:
                    found[full] = values
        return found

    def _shape(self, name: str) -> tuple[int, ...] | None:
        path, _, last = name.rpartition(".")
        module = self._reference.model.get_submodule(path)
        tensor = {**module._buffers, **module._parameters}.get(last)
        return None if tensor is None else tuple(tensor.shape)

    def _whole_experts(self, path: str, last: str, count: int) -> torch.Tensor | None:
        return self._reference.truth.experts(path, last, range(count), self._reference.columns)

    def _fused(self, module: ModulePlan, last: str) -> torch.Tensor | None:
        """What a fused parameter would be by the adapter's reading of the experts."""
        weights = BoundWeights(module, self._source).experts()

        def opened(packed: Any) -> torch.Tensor:
            return torch.stack([torch.from_numpy(one.dequantize()) for one in packed])

        if self._reference.columns or last.endswith("_bias"):
            return None
        if last == "down_proj":
            return opened(weights.down)
        return torch.cat([opened(weights.gate), opened(weights.up)], dim=1)


def quantisation_bound(kind: QuantType) -> Bound:
    """How far a block format may be from what was quantised, by its bits per value.

    Rounding to b bits costs about 2**-b of the values' size; formats, and the search that made the
    file, differ by some factor, for which four is room.
    """
    bits = _bits(kind)
    return Bound(min(4 * 2.0**-bits, 0.8), f"{kind} keeps {bits:.2g} bits of each value")


def _bits(kind: QuantType) -> float:
    layout = LAYOUTS[kind]
    return 8 * layout.block_bytes / layout.block_size


def _sample(name: str, shape: Sequence[int]) -> np.ndarray[Any, Any] | None:
    """Rows to compare of a table too large to be taken whole; only those outside the layers are."""
    if name.startswith("model.layers.") or len(shape) != 2 or shape[0] * shape[1] <= _VALUES:
        return None
    return np.unique(np.linspace(0, shape[0] - 1, _ROWS).astype(np.int64))


def _some_experts(count: int, values_each: int) -> list[int]:
    wanted = min(count, max(3, _VALUES // max(values_each, 1)))
    return sorted({round(i * (count - 1) / max(wanted - 1, 1)) for i in range(wanted)})


def explained(findings: Sequence[Finding]) -> list[Finding]:
    """Mark broken modules that hold other broken ones, or whose weights are wrong, as explained."""
    wrong = {f.module for f in findings if f.verdict == BROKEN}
    marked = []
    for finding in findings:
        inside = tuple(
            dict.fromkeys(
                f.module
                for f in findings
                if f.module in wrong
                and f.verdict == BROKEN
                and f.module.startswith(f"{finding.module}.")
            )
        )
        leaves = tuple(m for m in inside if not any(o.startswith(f"{m}.") for o in inside))
        marked.append(replace(finding, inside=leaves) if finding.verdict != OK else finding)
    return marked
