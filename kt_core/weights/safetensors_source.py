"""A safetensors model: one file, or a sharded set with its index."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from kt_core.errors import Problem, Severity
from kt_core.weights import strict_json
from kt_core.weights.confine import companion
from kt_core.weights.files import WeightFile
from kt_core.weights.filesource import FileSource
from kt_core.weights.safetensors_header import SafetensorsHeader, read_header
from kt_core.weights.sniff import MAX_SAFETENSORS_HEADER
from kt_core.weights.tensor import TensorInfo
from kt_core.weights.text import error, nearest, printable, problem

INDEX_SUFFIX = ".safetensors.index.json"
SHARD_NAME = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.DOTALL
)
_SHOWN = 10


def open_safetensors(path: str, *, mmap: bool = True) -> FileSource:
    """Open a file, or the set whose index or shard it is; nothing stays open on error."""
    opened: list[WeightFile] = []
    try:
        if path.endswith(INDEX_SUFFIX):
            return _open_index(path, path, opened, mmap)
        index = _index_of(path)
        if index is not None:
            return _open_index(path, index, opened, mmap)
        names = _numbered_set(path)
        if names is not None:
            return _open_parts(path, names, None, opened, mmap)
        file = WeightFile(path, use_mmap=mmap)
        opened.append(file)
        header = read_header(file)
        return FileSource(path, "safetensors", [file], header.metadata, header.tensors)
    except BaseException:
        for file in opened:
            file.close()
        raise


def read_index(path: str) -> dict[str, str]:
    """Return the ``weight_map`` of an index: tensor names to file names, not yet looked up."""
    file = WeightFile(path)
    try:
        if file.size > MAX_SAFETENSORS_HEADER:
            raise error("KT454", path, f"is an index of {file.size} bytes, which no model needs")
        try:
            content = strict_json.parse(file.read(0, file.size))
        except strict_json.JsonError as cause:
            raise error("KT454", path, f"the index {cause}", offset=cause.offset) from cause
    finally:
        file.close()
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise error(
            "KT454",
            path,
            "the index has no weight_map of tensor names to file names",
            field="weight_map",
            help="download the index again",
        )
    return found


def _index_of(path: str) -> str | None:
    """Return the index in the folder of ``path`` that lists it as a shard."""
    match = SHARD_NAME.fullmatch(os.path.basename(path))
    if match is None:
        return None
    index = os.path.join(os.path.dirname(path), match["stem"] + INDEX_SUFFIX)
    return index if os.path.isfile(index) else None


def _numbered_set(path: str) -> list[str] | None:
    """Return the names of all parts if ``path`` is named as one of several."""
    match = SHARD_NAME.fullmatch(os.path.basename(path))
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return None
    count = int(match["count"])
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def _open_index(path: str, index: str, opened: list[WeightFile], mmap: bool) -> FileSource:
    weight_map = read_index(index)
    names = sorted(set(weight_map.values()))
    return _open_parts(path, names, (index, weight_map), opened, mmap)


def _open_parts(
    path: str,
    names: Sequence[str],
    index: tuple[str, dict[str, str]] | None,
    opened: list[WeightFile],
    mmap: bool,
) -> FileSource:
    folder = os.path.dirname(path)
    named_by = index[0] if index else path
    paths = [companion(folder, name, named_by=named_by, opened=path) for name in names]
    missing = [name for name, at in zip(names, paths, strict=True) if not os.path.exists(at)]
    if missing:
        raise error(
            "KT422",
            named_by,
            f"names {len(names)} parts; {len(missing)} of them are missing",
            facts=[f"missing: {printable(name)}" for name in missing[:_SHOWN]]
            + ([f"and {len(missing) - _SHOWN} more"] if len(missing) > _SHOWN else []),
            help="download the missing parts into the same folder",
        )
    headers: dict[str, SafetensorsHeader] = {}
    for name, at in zip(names, paths, strict=True):
        file = WeightFile(at, use_mmap=mmap)
        opened.append(file)
        headers[name] = read_header(file)
    tensors = _join(headers) if index is None else _pick(headers, *index)
    found = _unused(named_by, headers, tensors)
    metadata = {
        key: text for header in reversed(headers.values()) for key, text in header.metadata.items()
    }
    return FileSource(path, "safetensors", opened, metadata, tensors, found)


def _join(headers: dict[str, SafetensorsHeader]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for header in headers.values():
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            name = min(twice)
            info = header.tensors[name]
            raise error(
                "KT415",
                info.file,
                f'the tensor "{name}" occurs in two parts of the set',
                field=f"tensor {name}",
                facts=(f"also in: {printable(os.path.basename(tensors[name].file))}",),
                help="download model.safetensors.index.json, which says which one counts",
            )
        tensors.update(header.tensors)
    return tensors


def _pick(
    headers: dict[str, SafetensorsHeader], index: str, weight_map: dict[str, str]
) -> dict[str, TensorInfo]:
    """Return the tensors that the index lists, each from the part it names."""
    absent = [
        (name, part) for name, part in weight_map.items() if name not in headers[part].tensors
    ]
    if absent:
        name, part = absent[0]
        near = ", ".join(nearest(name, headers[part].tensors)) or "none"
        raise error(
            "KT454",
            index,
            f"the index lists {len(absent)} tensors that their parts do not hold",
            field="weight_map",
            facts=[f"absent: {printable(n)} in {printable(p)}" for n, p in absent[:_SHOWN]]
            + [f"nearest to the first: {near}"],
            help="download index and parts again, from the same revision",
        )
    return {
        name: info
        for part, header in headers.items()
        for name, info in header.tensors.items()
        if weight_map.get(name) == part
    }


def _unused(
    path: str, headers: dict[str, SafetensorsHeader], tensors: dict[str, TensorInfo]
) -> list[Problem]:
    extra = sorted({name for h in headers.values() for name in h.tensors} - tensors.keys())
    if not extra:
        return []
    return [
        problem(
            "KT455",
            path,
            f"{len(extra)} tensors of its parts are not in the index and are not used",
            facts=[printable(name) for name in extra[:_SHOWN]],
            severity=Severity.WARNING,
        )
    ]
