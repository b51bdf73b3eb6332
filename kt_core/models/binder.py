"""Which stored tensors make which parameter, for any kind of weight file."""

from __future__ import annotations

from typing import Any, Protocol

from kt_core.errors import WeightsError
from kt_core.models.binding import COLUMNS, ROWS, Binding, ExpertsBinding
from kt_core.models.family import Family, num_experts
from kt_core.weights import WeightSource


class Binder(Protocol):
    """Translates the model's names into the file's."""

    def parameter(self, name: str, shape: tuple[int, ...]) -> Binding | None:
        """Bind one parameter; ``None`` if the file has nothing for it."""

    def experts(self, path: str, experts: int) -> ExpertsBinding:
        """Bind the experts of the module at ``path``; raises ``WeightsError`` KT410."""

    def wanted(self, name: str) -> str:
        """The stored names that were looked for, to say in an error."""


def make_binder(source: WeightSource, family: Family, config: Any) -> Binder:
    """Return the binder for a weight file's format."""
    if source.format == "gguf":
        return GgufBinder(source, family, config)
    return SafetensorsBinder(source, family, config)


class GgufBinder:
    """GGUF names differ from transformers', and how is the family's knowledge."""

    def __init__(self, source: WeightSource, family: Family, config: Any) -> None:
        self._present = source.tensors
        self._family = family
        self._config = config

    def parameter(self, name: str, shape: tuple[int, ...]) -> Binding | None:
        """See :class:`Binder`."""
        return self._family.bind(name, shape, self._config, self._present)

    def experts(self, path: str, experts: int) -> ExpertsBinding:
        """See :class:`Binder`."""
        return self._family.bind_experts(path, experts, self._present)

    def wanted(self, name: str) -> str:
        """See :class:`Binder`."""
        names = self._family.gguf_names(name, self._config.num_hidden_layers)
        return " or ".join(names) or name


# How checkpoints spell one expert's gate, up and down projection.
_EXPERT_SPELLINGS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("gate", "up", "down"),
)


# Endings of tensors that only quantised checkpoints have: scales that belong to other tensors.
_SCALES = ("weight_scale_inv", "weight_scale", "_scales", "qzeros", "weight_packed")


class SafetensorsBinder:
    """Hugging Face checkpoints use transformers' names, but most store each expert by itself.

    Raises:
        WeightsError: KT468 for a checkpoint whose values mean nothing without their scales.
    """

    def __init__(self, source: WeightSource, family: Family, config: Any) -> None:
        scale = next((name for name in source.tensors if name.endswith(_SCALES)), None)
        if scale is not None:
            raise WeightsError.of(
                "KT468",
                f"{source.path} is quantised (FP8, MXFP4, compressed); kt reads that from GGUF only",
                facts=[f"found: {scale}"],
                help="use a GGUF file of the model, or a checkpoint in bfloat16",
            )
        self._present = source.tensors
        self._family = family
        self._config = config

    def parameter(self, name: str, shape: tuple[int, ...]) -> Binding | None:
        """See :class:`Binder`."""
        for stored in self._spellings(name):
            if stored in self._present:
                return Binding(name, (stored,))
        path, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or not path.endswith(self._family.experts):
            return None
        found = self.experts(path, num_experts(self._config))
        if last == "down_proj":
            return Binding(name, found.down, "stack")
        return Binding(name, found.gate + found.up, "stack_gate_up")

    def experts(self, path: str, experts: int) -> ExpertsBinding:
        """See :class:`Binder`."""
        for place in self._spellings(path):
            if f"{place}.gate_up_proj" in self._present:
                return self._complete(path, self._fused(place))
            for spelling in _EXPERT_SPELLINGS:
                gate, up, down = (
                    tuple(f"{place}.{expert}.{part}.weight" for expert in range(experts))
                    for part in spelling
                )
                if gate[0] in self._present:
                    return self._complete(path, ExpertsBinding(gate, up, down))
        raise WeightsError.of(
            "KT410",
            f"the files have no weights of the experts at {path}",
            facts=[f"looked for: {path}.gate_up_proj, {path}.0.gate_proj.weight"],
            help="check the files with: kt inspect FOLDER",
        )

    def _fused(self, place: str) -> ExpertsBinding:
        gate_up_bias, down_bias = (
            (name,) if (name := f"{place}.{part}_bias") in self._present else ()
            for part in ("gate_up_proj", "down_proj")
        )
        return ExpertsBinding(
            gate_up=(f"{place}.gate_up_proj",),
            down=(f"{place}.down_proj",),
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            layout=COLUMNS if self._family.experts_in_columns else ROWS,
        )

    def _complete(self, path: str, binding: ExpertsBinding) -> ExpertsBinding:
        missing = [name for name in binding.tensors if name not in self._present]
        if missing:
            raise WeightsError.of(
                "KT410",
                f"{len(missing)} weights of the experts at {path} are missing",
                facts=[f"missing: {', '.join(missing[:4])}"],
                help="the download is incomplete; fetch the missing shards",
            )
        return binding

    def _spellings(self, name: str) -> tuple[str, ...]:
        """The model's own name and those of the checkpoint's original code."""
        renamed = (name.replace(*pair, 1) for pair in self._family.checkpoint_renames)
        return tuple(dict.fromkeys((name, *renamed)))

    def wanted(self, name: str) -> str:
        """See :class:`Binder`."""
        return " or ".join(self._spellings(name))
