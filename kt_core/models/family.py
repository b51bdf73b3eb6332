"""What differs from one model architecture to the next, in one small adapter each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from kt_core.errors import PlanError, WeightsError
from kt_core.models.binding import Binding, ExpertsBinding
from kt_core.models.metadata import Metadata
from kt_core.models.names import Spellings, block_of, stored_names
from kt_core.weights import TensorInfo

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

Present = Mapping[str, TensorInfo]
"""The tensors of a file by name."""


_BLOCK = re.compile(r"^(?:blk|model\.layers)\.(\d+)\.")
# Rotary frequencies and their divisors, which are computed or applied apart from any module.
_DERIVED = (r"rope_freqs\.weight", r"blk\.\d+\.attn_rot_embd\.weight", r".*rotary_emb\.inv_freq")


class Family:
    """Adapter of one architecture. Subclasses are data plus what cannot be data.

    ``gguf`` is the file's ``general.architecture``, ``model_type`` transformers' name for it and
    ``architectures`` the causal-LM classes it serves; what a GGUF holds becomes the first of them.
    ``other_model_types`` are further types of Hugging Face folders with the same parameters.
    """

    gguf: ClassVar[str]
    model_type: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]
    other_model_types: ClassVar[tuple[str, ...]] = ()

    # Names that gguf's table does not have, by the path inside a layer.
    spellings: ClassVar[Spellings] = {}
    # How checkpoints of the original code call a part of the path: transformers' word -> theirs.
    checkpoint_renames: ClassVar[tuple[tuple[str, str], ...]] = ()
    # Parameters and buffers that keep float32 whatever the model's dtype: small sums decide there.
    float32: ClassVar[tuple[str, ...]] = ("e_score_correction_bias",)

    # Stored tensors that no module needs, as patterns of their whole names.
    ignored: ClassVar[tuple[str, ...]] = ()

    # The module that holds a layer's experts, and how transformers lays their weights out.
    experts: ClassVar[str] = "mlp.experts"
    experts_in_columns: ClassVar[bool] = False

    def serves(self, metadata: Metadata, tensors: Present) -> bool:
        """Whether a file of the architecture ``gguf`` is this family's; several may share one."""
        return True

    def config(self, metadata: Metadata, tensors: Present) -> dict[str, Any]:
        """Return the keyword arguments of transformers' config class."""
        raise NotImplementedError

    def transform(self, parameter: str, config: Any) -> tuple[str, dict[str, Any]]:
        """Say what turns the one stored tensor of ``parameter`` into it."""
        return "as_is", {}

    def gguf_names(self, parameter: str, layers: int) -> tuple[str, ...]:
        """Return every name ``parameter`` may have in a file, the preferred one first."""
        path, _, name = parameter.rpartition(".")
        if path.endswith(f".{self.experts}"):
            kind = "bias" if name.endswith("_bias") else "weight"
            parts = ("down",) if name.startswith("down") else ("gate", "up")
            return tuple(f"{block_of(path)}.ffn_{part}_exps.{kind}" for part in parts)
        return stored_names(self.gguf, parameter, layers, self.spellings)

    def hf_names(self, parameters: Iterable[str], layers: int) -> dict[str, str]:
        """Return stored name -> parameter path for the ``parameters`` a model really has.

        Several spellings lead to one parameter, and one spelling to different parameters in
        different models, so the way back needs the model.
        """
        return {stored: name for name in parameters for stored in self.gguf_names(name, layers)}

    def ignores(self, stored: str, layers: int) -> bool:
        """Whether it is no mistake that nothing takes the tensor ``stored``."""
        block = _BLOCK.match(stored)
        if block is not None and int(block[1]) >= layers:
            return True  # a layer that predicts further tokens ahead
        return any(re.fullmatch(pattern, stored) for pattern in (*_DERIVED, *self.ignored))

    def bind(
        self, parameter: str, shape: tuple[int, ...], config: Any, present: Present
    ) -> Binding | None:
        """Say which stored tensors make ``parameter``; ``None`` if the file holds none of them."""
        path = parameter.rpartition(".")[0]
        if path.endswith(f".{self.experts}"):
            return self._bind_fused(
                parameter, self.bind_experts(path, num_experts(config), present)
            )
        for stored in self.gguf_names(parameter, config.num_hidden_layers):
            if stored in present:
                transform, args = self.transform(parameter, config)
                if transform == "as_is" and _differs_by_ones(shape, present[stored].shape):
                    transform, args = "squeezed", {"shape": list(shape)}
                return Binding(parameter, (stored,), transform, args)
        return None

    def bind_experts(self, path: str, experts: int, present: Present) -> ExpertsBinding:
        """Say which stored tensors hold the experts of the module at ``path``.

        Raises:
            WeightsError: KT410, naming what was looked for.
        """
        block = block_of(path)
        gate, up, down = (
            _expert_tensors(block, part, experts, present) for part in ("gate", "up", "down")
        )
        merged = f"{block}.ffn_gate_up_exps.weight"
        if not gate and down and merged in present:
            return ExpertsBinding(gate_up=(merged,), down=down)
        found = {"gate": gate, "up": up, "down": down}
        missing = [part for part, names in found.items() if not names]
        if missing:
            raise WeightsError.of(
                "KT410",
                f"the file has no {', '.join(missing)} weights of the experts at {path}",
                facts=[
                    f"looked for: {block}.ffn_{part}_exps.weight, {block}.ffn_{part}.0.weight"
                    for part in missing
                ],
                help="check the file with: kt inspect FILE",
            )
        gate_bias, up_bias, down_bias = (
            _if_present(f"{block}.ffn_{part}_exps.bias", present) for part in found
        )
        return ExpertsBinding(
            gate, up, down, gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias
        )

    def _bind_fused(self, parameter: str, found: ExpertsBinding) -> Binding | None:
        """One of the fused parameters that transformers keeps a layer's experts in."""
        name = parameter.rpartition(".")[2]
        if name.endswith("_bias"):
            if name.startswith("down"):
                return Binding(parameter, found.down_bias) if found.down_bias else None
            pair = found.gate_bias + found.up_bias
            return Binding(parameter, pair, "alternate") if len(pair) == 2 else None
        if name.startswith("down"):
            if self.experts_in_columns:
                return Binding(parameter, found.down, "transposed")
            return Binding(parameter, found.down, "as_is" if len(found.down) == 1 else "stack")
        if self.experts_in_columns:
            pair = found.gate + found.up
            return Binding(parameter, pair, "alternate_columns") if len(pair) == 2 else None
        if found.gate_up:
            return Binding(parameter, found.gate_up)
        together = "concat_rows" if len(found.gate) == 1 else "stack_gate_up"
        return Binding(parameter, found.gate + found.up, together)


def _if_present(name: str, present: Present) -> tuple[str, ...]:
    return (name,) if name in present else ()


def _expert_tensors(block: str, part: str, experts: int, present: Present) -> tuple[str, ...]:
    stacked = f"{block}.ffn_{part}_exps.weight"
    if stacked in present:
        return (stacked,)
    each = tuple(f"{block}.ffn_{part}.{expert}.weight" for expert in range(experts))
    if not each or each[0] not in present:
        return ()
    missing = [name for name in each if name not in present]
    if missing:
        raise WeightsError.of(
            "KT410",
            f"{len(missing)} of the {experts} experts of {block} are missing",
            facts=[f"missing: {', '.join(missing[:4])}"],
            help="the file is incomplete; get it again",
        )
    return each


def _differs_by_ones(shape: tuple[int, ...], stored: tuple[int, ...]) -> bool:
    """Whether the shapes are unlike, but alike without dimensions of size one."""
    return shape != stored and [n for n in shape if n > 1] == [n for n in stored if n > 1]


def num_experts(config: Any) -> int:
    """Routed experts per layer, whatever the config calls them; 0 for a dense model."""
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        value = getattr(config, key, None)
        if value:
            return int(value)
    return 0


def family_for_gguf(
    metadata: Mapping[str, Any],
    tensors: Present,
    path: str,
    registry: Registry | None = None,
) -> Family:
    """Find the adapter for a file: one of kt's own, else a plugin's of ``registry``.

    Raises:
        WeightsError: KT460 for a file without an architecture, KT463 for one kt has no adapter for.
        PluginError: KT216 if a plugin's adapter cannot be loaded.
    """
    from kt_core.models.families import FAMILIES, WITHOUT_MODEL

    name = metadata.get("general.architecture")
    if name is None:
        raise WeightsError.of(
            "KT460",
            f'{path} has no "general.architecture" in its metadata',
            help="give a model file, not a vocabulary, adapter or projector file",
        )
    for family in FAMILIES:
        if family.gguf == name and family.serves(Metadata(metadata, name, path), tensors):
            return family
    brought = _registry(registry).architectures()
    for spec in brought:
        if spec.gguf == name:
            family = _registry(registry).load_target(spec)()
            if family.serves(Metadata(metadata, name, path), tensors):
                return family  # type: ignore[no-any-return]
    if name in WITHOUT_MODEL:
        raise WeightsError.of(
            "KT467",
            f'transformers has no class for the architecture "{name}" of {path}',
            facts=[WITHOUT_MODEL[name]],
            help="ask for the model in transformers; kt builds every model from its classes",
        )
    known = sorted({*(family.gguf for family in FAMILIES), *(spec.gguf for spec in brought)})
    raise WeightsError.of(
        "KT463",
        f'{path} holds a model of the architecture "{name}", which kt does not know',
        facts=[f"known: {', '.join(known)}"],
        help="CONTRIBUTING.md says how to add an architecture",
    )


def family_for_config(config: Any, registry: Registry | None = None) -> Family:
    """Find the adapter for a transformers config: one of kt's own, else a plugin's of ``registry``.

    Raises:
        PlanError: KT301 for an architecture kt has no adapter for.
        PluginError: KT216 if a plugin's adapter cannot be loaded.
    """
    from kt_core.models.families import FAMILIES

    wanted = set(getattr(config, "architectures", None) or ())
    for family in FAMILIES:
        if wanted & set(family.architectures):
            return family
    for family in FAMILIES:
        if config.model_type in (family.model_type, *family.other_model_types):
            return family
    for spec in _registry(registry).architectures():
        if wanted & set(spec.architectures) or config.model_type in spec.model_types:
            return _registry(registry).load_target(spec)()  # type: ignore[no-any-return]
    raise PlanError.of(
        "KT301",
        f'kt does not know the architecture "{", ".join(wanted) or config.model_type}"',
        facts=[f"known: {', '.join(sorted(a for f in FAMILIES for a in f.architectures))}"],
        help="CONTRIBUTING.md says how to add an architecture",
    )


def _registry(registry: Registry | None) -> Registry:
    from kt_core.registry.registry import default_registry

    return registry or default_registry()
