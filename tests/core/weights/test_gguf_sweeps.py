"""Sweeps over a small valid file: every cut, every integer, and seeded mutations."""

from __future__ import annotations

import random

import pytest

from kt_core.errors import WeightsError
from kt_core.weights import open_weights

from .damage import VALUES, MemoryFile, mutate
from .gguf_bytes import File
from .gguf_cases import BASE

MUTATIONS = 10_000


def outcome(file: MemoryFile, data: bytes, strict: bool = False) -> str:
    """Open and read everything: ``"ok"`` or the code; any other exception fails the test."""
    file.write(data)
    try:
        with open_weights(file.path, mmap=False, strict=strict, format="gguf") as source:
            for name in source.tensors:
                source.tensor(name)
            for key in source.metadata:
                source.metadata[key]
    except WeightsError as error:
        (problem,) = error.problems
        assert problem.render().isprintable() or "\n" in problem.render()
        return problem.code
    return "ok"


@pytest.fixture
def file():
    file = MemoryFile()
    yield file
    file.close()


def test_every_cut_is_refused(file):
    outcomes = {n: outcome(file, BASE[:n]) for n in range(len(BASE))}
    assert "ok" not in outcomes.values()
    assert outcome(file, BASE) == "ok"
    assert set(outcomes.values()) <= {"KT408", "KT411", "KT419"}


def test_every_integer_field(file):
    data, fields = File().build_with_fields()
    assert len(fields) > 60
    for field in fields:
        for value in VALUES:
            number = value % 2 ** (8 * field.size)
            raw = number.to_bytes(field.size, "little")
            changed = data[: field.offset] + raw + data[field.offset + field.size :]
            if changed == data or may_be_valid(field.name, number):
                assert outcome(file, changed).startswith(("ok", "KT4"))
            else:
                assert outcome(file, changed, strict=True) != "ok", (field, number)


def may_be_valid(name: str, value: int) -> bool:
    """Whether a file with this integer can be consistent: no reader could tell."""
    if name.endswith(".value"):
        return name != "kv1.value"  # any number is a value; kv1 is the alignment
    # A type of the same width, or a smaller shape or type whose padded size is the same.
    return value in (0, 1) and name.split(".")[-1].rstrip("0123") in ("dim", "type", "item_type")


def test_mutations(file):
    rng = random.Random(40)
    seen: dict[str, int] = {}
    for _ in range(MUTATIONS):
        data = mutate(rng, BASE)
        result = outcome(file, data)
        seen[result] = seen.get(result, 0) + 1
    # The mutations must reach deep enough to mean something.
    assert seen.get("ok", 0) < MUTATIONS / 2
    assert len(seen) >= 12, seen
