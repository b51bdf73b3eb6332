"""The keys of a rule file, by place, and what is known about wrong ones.

The same keys, with their descriptions, are in ``schemas/rules.v1.schema.json`` for editors; a test
holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A closed mapping: its keys in the order users write them, and those that must be there."""

    what: str
    keys: tuple[str, ...]
    required: tuple[str, ...] = ()


FILE = Shape("a rule file", ("version", "architectures", "description", "rules"), ("rules",))
RULE = Shape("a rule", ("match", "replace", "recursive", "continue"), ("match", "replace"))
MATCH = Shape("match", ("name", "class"))
REPLACE = Shape("replace", ("class", "kwargs"))

PLACEMENT_KWARGS = ("generate_device", "prefill_device", "out_device")
"""Kwargs that say where; every operator takes them."""

KERNEL_KWARGS = {"generate_op": "generate_device", "prefill_op": "prefill_device"}
"""Kwargs that name a phase's kernel, each with the kwarg that says where that phase runs."""

PHASE_KWARGS = (*KERNEL_KWARGS, *PLACEMENT_KWARGS)

INTEGER_KEYS = frozenset({"transfer_map"})
"""Kwargs that are mappings from layer numbers, so that their keys are whole numbers."""


@dataclass(frozen=True)
class Stray:
    """A key that is wrong where it stands: why, and a line that says what to write."""

    why: str
    help: str


_IN_KWARGS = "it belongs into kwargs, one level deeper"
_IN_REPLACE = "it belongs into replace"

STRAYS: Mapping[str, Mapping[str, Stray]] = {
    RULE.what: {
        "kwargs": Stray(_IN_REPLACE, "indent kwargs: two spaces deeper, below replace:"),
        "name": Stray("it belongs into match", "indent name: two spaces deeper, below match:"),
        "class": Stray(
            "it belongs into match or replace", "indent class: two spaces deeper, below its heading"
        ),
        **{
            key: Stray("it belongs into replace, kwargs", f"write {key}: below kwargs:")
            for key in PHASE_KWARGS
        },
    },
    MATCH.what: {
        "replace": Stray("it belongs beside match", "put replace: in the same column as match:"),
        "kwargs": Stray(_IN_REPLACE, "put kwargs: below replace:"),
        "recursive": Stray(
            "it belongs beside match", "put recursive: in the same column as match:"
        ),
    },
    REPLACE.what: {
        # KTransformers' own headline example has this key, and its engine never read it.
        "device": Stray(
            "KTransformers ignored this key without a word",
            "below kwargs: write generate_device: and prefill_device:",
        ),
        "name": Stray("it belongs into match", "put name: below match:"),
        "match": Stray("it belongs beside replace", "put match: in the same column as replace:"),
        "recursive": Stray(
            "it belongs beside replace", "put recursive: in the same column as replace:"
        ),
        "continue": Stray(
            "it belongs beside replace", "put continue: in the same column as replace:"
        ),
        **{
            key: Stray(_IN_KWARGS, f"indent {key}: two spaces deeper, below kwargs:")
            for key in (*PHASE_KWARGS, *INTEGER_KEYS)
        },
    },
}
