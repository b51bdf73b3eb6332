"""The configuration a file gives, against the one its original checkpoint has."""

from __future__ import annotations

from typing import Any

from kt_core.models.hf import config_from_folder
from kt_core.verify import report
from kt_core.verify.compare import OK, SUSPECT
from kt_core.verify.report import Finding

# What no result depends on, and what files do not record.
_ASIDE = frozenset(
    {
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "max_position_embeddings",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "transformers_version",
        "use_cache",
        "_name_or_path",
    }
)


def compare_configuration(config: Any, folder: str) -> list[Finding]:
    """Return one finding that names the values in which the two differ.

    Raises:
        WeightsError: KT464 for a folder without a usable config.json.
    """
    original = config_from_folder(folder).to_dict()
    found = config.to_dict()
    differing = [
        f"{key}: {found[key]!r} from the file, {original[key]!r} in config.json"
        for key in sorted((found.keys() & original.keys()) - _ASIDE)
        if not _same(found[key], original[key])
    ]
    return [
        Finding(
            "(configuration)",
            type(config).__name__,
            "default",
            report.REFERENCE,
            float(len(differing)),
            float(len(differing)),
            0.0,
            "the file's metadata are those of the checkpoint",
            SUSPECT if differing else OK,
            tuple(differing),
        )
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        # Files keep 32 bits of a number.
        return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one[key], other[key]) for key in one.keys() & other.keys())
    return bool(one == other)
