"""Stored tensor names and parameter paths, in both directions.

``gguf`` keeps the table of how every project spells a tensor; it is used here for parameters that
end in ``.weight`` or ``.bias``. What it does not say (parameters without such an ending, and
spellings that older converters wrote) is a family's own ``spellings``.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from functools import lru_cache

from kt_core.errors import WeightsError

_LAYER = re.compile(r"^model\.layers\.(\d+)(?:\.|$)(.*)")

Spellings = Mapping[str, tuple[str, ...]]
"""Path inside a layer -> names inside its block, the preferred one first."""

ROUTER_BIAS: Spellings = {
    # Files from before the suffix was agreed on hold it without one.
    f"mlp.{owner}e_score_correction_bias": ("exp_probs_b.bias", "exp_probs_b")
    for owner in ("", "gate.")
}
"""The correction that DeepSeek-V3's kind of router adds to the scores it chooses by."""


def layer_of(path: str) -> int | None:
    """The decoder layer that a parameter or module belongs to."""
    found = _LAYER.match(path)
    return int(found[1]) if found else None


def block_of(path: str) -> str:
    """``model.layers.3.mlp.experts`` -> ``blk.3``; a path outside the layers stays as it is."""
    layer = layer_of(path)
    return path if layer is None else f"blk.{layer}"


def stored_names(
    architecture: str, parameter: str, layers: int, spellings: Spellings
) -> tuple[str, ...]:
    """Every name ``parameter`` may have in a file of ``architecture``, the preferred one first.

    Raises:
        WeightsError: KT463 if the installed gguf does not know the architecture.
    """
    found = _LAYER.match(parameter)
    if found is not None and found[2] in spellings:
        return tuple(f"blk.{found[1]}.{name}" for name in spellings[found[2]])
    name = _name_map(architecture, layers).get(parameter)
    return () if name is None else (name,)


@lru_cache(maxsize=8)
def _name_map(architecture: str, layers: int) -> dict[str, str]:
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in numbers:
        raise WeightsError.of(
            "KT463",
            f"gguf {importlib.metadata.version('gguf')} does not know the architecture "
            f'"{architecture}"',
            help="pip install --upgrade gguf",
        )
    table = gguf.get_tensor_name_map(numbers[architecture], layers)
    return {
        key + suffix: stored + suffix
        for key, (_, stored) in table.mapping.items()
        for suffix in (".weight", ".bias")
    }
