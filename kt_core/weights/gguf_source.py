"""A GGUF model: one file, or every part of a split set whichever part was named."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from kt_core.weights.confine import companion
from kt_core.weights.files import WeightFile
from kt_core.weights.filesource import FileSource
from kt_core.weights.gguf_header import GgufHeader, read_header
from kt_core.weights.tensor import TensorInfo
from kt_core.weights.text import error, printable

SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
"""How the parts of a set are named; numbers begin at 1, ``split.no`` at 0."""

MAX_PARTS = 99_999


def open_gguf(path: str, *, mmap: bool = True, strict: bool = False) -> FileSource:
    """Open the model that ``path`` is, or is a part of. Nothing stays open if this raises."""
    opened: list[WeightFile] = []
    try:
        first = WeightFile(path, use_mmap=mmap)
        opened.append(first)
        header = read_header(first, strict=strict)
        parts = [(first, header)]
        count = _split_value(first, header, "split.count")
        if count is not None and count > 1:
            parts = _open_set(path, count, parts[0], opened, mmap=mmap, strict=strict)
        tensors = _merge(parts)
        _check_total(parts[0], len(tensors))
    except BaseException:
        for file in opened:
            file.close()
        raise
    found = [each for _, part in parts for each in part.problems]
    files = [file for file, _ in parts]
    first_header = parts[0][1]
    details = {"version": first_header.version, "alignment": first_header.alignment}
    return FileSource(path, "gguf", files, first_header.metadata, tensors, found, details)


def part_names(name: str, count: int) -> list[str] | None:
    """Return the names of all ``count`` parts of the set of ``name``, ``None`` if it is no part."""
    match = SPLIT_NAME.fullmatch(name)
    if match is None or int(match["count"]) != count:
        return None
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def _open_set(
    path: str,
    count: int,
    given: tuple[WeightFile, GgufHeader],
    opened: list[WeightFile],
    *,
    mmap: bool,
    strict: bool,
) -> list[tuple[WeightFile, GgufHeader]]:
    folder, name = os.path.split(path)
    if SPLIT_NAME.fullmatch(name) is None and os.path.islink(path):
        folder, name = os.path.split(os.path.realpath(path))  # the link has a name of its own
    number = _split_value(*given, "split.no")
    names = part_names(name, count) if count <= MAX_PARTS else None
    if names is None or number is None or number >= count or names[number] != name:
        raise error(
            "KT423",
            path,
            f"says it is part {'?' if number is None else number + 1} of {count}, "
            "but its name says otherwise",
            field="split.no",
            facts=(f"expected a name like MODEL-{(number or 0) + 1:05d}-of-{count:05d}.gguf",),
            help="rename the part as it was published; if parts were joined with cat, "
            "use them unjoined or join them with llama-gguf-split --merge",
        )
    # Every path is settled and present before the first further file is opened.
    paths = [companion(folder, part, named_by=path, opened=path) for part in names]
    missing = [part for part, at in zip(names, paths, strict=True) if not os.path.exists(at)]
    if missing:
        raise error(
            "KT422",
            path,
            f"is part {number + 1} of {count}; {len(missing)} of the others are missing",
            facts=[f"missing: {printable(part)}" for part in missing[:10]]
            + ([f"and {len(missing) - 10} more"] if len(missing) > 10 else []),
            help="download the missing parts into the same folder",
        )
    parts = []
    for index, at in enumerate(paths):
        if index == number:
            parts.append(given)
            continue
        file = WeightFile(at, use_mmap=mmap)
        opened.append(file)
        header = read_header(file, strict=strict)
        for key, expected in (("split.count", count), ("split.no", index)):
            value = _split_value(file, header, key)
            if value != expected:
                raise error(
                    "KT423",
                    at,
                    f"does not belong to the set: its {key} is {value}, expected {expected}",
                    field=key,
                    help="download this part again",
                )
        parts.append((file, header))
    return parts


def _merge(parts: Sequence[tuple[WeightFile, GgufHeader]]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for file, header in parts:
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            name = min(twice)
            raise error(
                "KT415",
                file.path,
                f'the tensor "{name}" occurs in two parts of the set',
                field=f"tensor {name}",
                facts=(f"also in: {printable(os.path.basename(tensors[name].file))}",),
            )
        tensors.update(header.tensors)
    return tensors


def _check_total(first: tuple[WeightFile, GgufHeader], total: int) -> None:
    expected = _split_value(*first, "split.tensors.count")
    if expected is not None and expected != total:
        raise error(
            "KT423",
            first[0].path,
            f"says the model has {expected} tensors; {total} were found",
            field="split.tensors.count",
            help="if parts were joined with cat, use them unjoined or join them with "
            "llama-gguf-split --merge; otherwise download the model again",
        )


def _split_value(file: WeightFile, header: GgufHeader, key: str) -> int | None:
    metadata = header.metadata
    if key not in metadata:
        return None
    field = metadata.field(key)
    value: Any = metadata[key] if field.count is None and field.type.code else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise error(
            "KT423",
            file.path,
            f"{key} is {field.type_name}; it must be a whole number, 0 or more",
            field=key,
            offset=field.offset,
        )
    return value
