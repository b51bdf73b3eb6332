"""What differs from one model architecture to the next, in one small adapter each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from kt_core.errors import PlanError, WeightsError
from kt_core.models.binding import Binding, ExpertsBinding
from kt_core.models.metadata import Metadata

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


class Family:
    """Adapter of one architecture. Subclasses are data plus what cannot be data.

    ``gguf`` is the file's ``general.architecture``, ``model_type`` transformers' name for it and
    ``architectures`` the causal-LM classes it serves.
    """

    gguf: ClassVar[str]
    model_type: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]

    # Parameters that hold a layer's experts as one fused tensor, by the end of their path.
    experts_gate_up: ClassVar[str] = "mlp.experts.gate_up_proj"
    experts_down: ClassVar[str] = "mlp.experts.down_proj"

    def config(self, metadata: Metadata, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of transformers' config class."""
        raise NotImplementedError

    def gguf_name(self, parameter: str, layers: int) -> str | None:
        """Translate a parameter's path into the name of a stored tensor, or ``None``."""
        return _name_map(self.gguf, layers).get(parameter)

    def hf_names(self, parameters: Iterable[str], layers: int) -> dict[str, str]:
        """Return stored name -> parameter path for the ``parameters`` a model really has.

        Several spellings lead to one stored name, so the way back needs the model.
        """
        table = _name_map(self.gguf, layers)
        return {table[name]: name for name in parameters if name in table}

    def bind(
        self, parameter: str, shape: tuple[int, ...], config: Any, present: Collection[str]
    ) -> Binding | None:
        """Say which stored tensors make ``parameter``; ``None`` if the file holds none of them."""
        if parameter.endswith((self.experts_gate_up, self.experts_down)):
            return self._bind_fused_experts(parameter, config, present)
        name = self.gguf_name(parameter, config.num_hidden_layers)
        if name is None or name not in present:
            return None
        return Binding(parameter, (name,))

    def bind_experts(self, path: str, experts: int, present: Collection[str]) -> ExpertsBinding:
        """Say which stored tensors hold the experts of the module at ``path``.

        Raises:
            WeightsError: KT410, naming what was looked for.
        """
        layer = _LAYER.match(path + ".")
        block = f"blk.{layer[1]}" if layer else path
        found = {}
        for part in ("gate", "up", "down"):
            found[part] = self._expert_tensors(block, part, experts, present)
        merged = f"{block}.ffn_gate_up_exps.weight"
        if not found["gate"] and merged in present:
            return ExpertsBinding(gate_up=(merged,), down=found["down"])
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
        return ExpertsBinding(found["gate"], found["up"], found["down"])

    def _expert_tensors(
        self, block: str, part: str, experts: int, present: Collection[str]
    ) -> tuple[str, ...]:
        stacked = f"{block}.ffn_{part}_exps.weight"
        if stacked in present:
            return (stacked,)
        each = tuple(f"{block}.ffn_{part}.{expert}.weight" for expert in range(experts))
        return each if each[0] in present else ()

    def _bind_fused_experts(
        self, parameter: str, config: Any, present: Collection[str]
    ) -> Binding | None:
        path = parameter.rpartition(".")[0]
        found = self.bind_experts(path, num_experts(config), present)
        if parameter.endswith(self.experts_down):
            stacked = len(found.down) == 1
            return Binding(parameter, found.down, "as_is" if stacked else "stack")
        if found.gate_up:
            return Binding(parameter, found.gate_up)
        stacked = len(found.gate) == 1
        return Binding(
            parameter, found.gate + found.up, "concat_rows" if stacked else "stack_gate_up"
        )


def num_experts(config: Any) -> int:
    """Routed experts per layer, whatever the config calls them; 0 for a dense model."""
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        value = getattr(config, key, None)
        if value:
            return int(value)
    return 0


@lru_cache(maxsize=4)
def _name_map(gguf_architecture: str, layers: int) -> dict[str, str]:
    """Parameter path -> stored name, from gguf's own table of every project's spelling."""
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(numbers[gguf_architecture], layers)
    return {
        key + suffix: stored + suffix
        for key, (_, stored) in table.mapping.items()
        for suffix in (".weight", ".bias")
    }


def family_for_gguf(source_metadata: Mapping[str, Any], path: str) -> Family:
    """Find the adapter for a file.

    Raises:
        WeightsError: KT463 for an architecture kt has no adapter for.
    """
    from kt_core.models.families import FAMILIES

    name = source_metadata.get("general.architecture")
    for family in FAMILIES:
        if family.gguf == name:
            return family
    known = sorted({family.gguf for family in FAMILIES})
    if name is None:
        raise WeightsError.of(
            "KT460",
            f'{path} has no "general.architecture" in its metadata',
            help="give a model file, not a vocabulary, adapter or projector file",
        )
    raise WeightsError.of(
        "KT463",
        f'{path} holds a model of the architecture "{name}", which kt does not know',
        facts=[f"known: {', '.join(known)}"],
        help="CONTRIBUTING.md says how to add an architecture",
    )


def family_for_config(config: Any) -> Family:
    """Find the adapter for a transformers config.

    Raises:
        PlanError: KT301 for an architecture kt has no adapter for.
    """
    from kt_core.models.families import FAMILIES

    wanted = tuple(getattr(config, "architectures", None) or ())
    for family in FAMILIES:
        if family.model_type == config.model_type or set(wanted) & set(family.architectures):
            return family
    raise PlanError.of(
        "KT301",
        f'kt does not know the architecture "{", ".join(wanted) or config.model_type}"',
        facts=[f"known: {', '.join(sorted(a for f in FAMILIES for a in f.architectures))}"],
        help="CONTRIBUTING.md says how to add an architecture",
    )
