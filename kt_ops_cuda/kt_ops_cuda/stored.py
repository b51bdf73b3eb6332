"""From a kernel's options and a stored tensor to blocks that can be packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kt_core.operators.kernel import Accuracy
from kt_core.weights import PLAIN, PackedTensor, QuantType
from kt_ops_cuda.layout import Format
from kt_ops_cuda.packing import EXACT_FORMATS, Blocks, blocks_of, take_apart, to_device
from kt_ops_cuda.quantize import Report, compare, format_for, quantise

FLOATS = frozenset(
    t for t in (QuantType.F32, QuantType.F16, QuantType.BF16, QuantType.F64) if t in PLAIN
)


@dataclass(frozen=True)
class Policy:
    """How stored types become packed ones. ``exact_only`` is the gguf kernels' promise."""

    num_bits: int = 4
    group_size: int = 128
    symmetric: bool = True
    requantize: bool = False
    exact_only: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], exact_only: bool) -> Policy:
        """Read a rule's options; unknown ones were refused by the schema before."""
        if exact_only:
            return cls(exact_only=True)
        return cls(
            int(options.get("num_bits", 4)),
            int(options.get("group_size", 128)),
            bool(options.get("symmetric", True)),
            bool(options.get("requantize", False)),
        )

    def reasons(self, type: QuantType) -> list[str]:
        """Why a tensor of ``type`` cannot be served; empty if it can."""
        if type in EXACT_FORMATS:
            return []
        if self.exact_only:
            kept = ", ".join(EXACT_FORMATS)
            return [f"{type} has no direct kernel; these are computed on as stored: {kept}"]
        found = []
        if type not in FLOATS and not self.requantize:
            found.append(
                f"{type} cannot be kept exactly; requantize: true allows a second rounding"
            )
        if format_for(self.num_bits, self.group_size, self.symmetric) is None:
            found.append(f"num_bits {self.num_bits} is symmetric only")
        return found

    def format(self, type: QuantType) -> Format | None:
        """The packed format for ``type``; ``None`` if there is none."""
        exact = EXACT_FORMATS.get(type)
        return exact or format_for(self.num_bits, self.group_size, self.symmetric)

    def accuracy(self, types: Sequence[QuantType]) -> Accuracy:
        """What a kernel on weights of ``types`` promises."""
        if all(kind in EXACT_FORMATS for kind in types):
            return Accuracy(0.01, "activations rounded to 16 bits")
        if self.num_bits == 8:
            return Accuracy(0.03, "weights rounded to 8 bits")
        return Accuracy(0.2, "weights rounded to 4 bits")

    def blocks(self, weight: PackedTensor, device: torch.device) -> tuple[Blocks, Report | None]:
        """Bring a tensor to ``device`` and take it apart, quantising where it must.

        The second value says what quantising cost; ``None`` if nothing was rounded.
        """
        if weight.type in EXACT_FORMATS:
            return take_apart(to_device(weight, device), weight.type), None
        values = weight.to_torch(torch.float32, device)
        quantised = quantise(values, self.num_bits, self.group_size, self.symmetric)
        return blocks_of(quantised), compare(quantised.dequantize(), values)
