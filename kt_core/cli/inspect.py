"""``kt inspect``: what a weight file holds, without reading a weight."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kt_core.cli import exit_codes
from kt_core.cli.output import table, write, write_json, write_problems
from kt_core.errors import Severity, WeightsError
from kt_core.units import human_bytes

if TYPE_CHECKING:
    from kt_core.weights.filesource import FileSource

_LONG_ARRAY = 8
_LONG_TEXT = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument(
        "path",
        metavar="FILE",
        help="a GGUF or safetensors file, any part of a split set, or a folder with one model",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tensors", action="store_true", help="print the tensors only")
    what.add_argument(
        "--metadata",
        metavar="KEY",
        action="append",
        default=[],
        help="print the whole value of this metadata key; may be repeated",
    )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.epilog = "Reads headers only. Exit: 0 the file is sound, 1 it is not, 2 wrong usage."


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0, or 1 if the file is wrong."""
    from kt_core.weights import open_weights

    as_json = args.format == "json"
    try:
        with open_weights(args.path, strict=args.strict) as source:
            if args.metadata:
                _write_values(_values(source, args.metadata), as_json)
                return exit_codes.OK
            report = describe(source)
    except WeightsError as error:
        if not as_json:
            raise
        write_json({"path": args.path, "problems": [dict(p.to_json()) for p in error.problems]})
        return exit_codes.INPUT
    if as_json:
        write_json(_finite({"tensors": report["tensors"]} if args.tensors else report))
        return exit_codes.OK
    write("\n".join(_tensor_rows(report["tensors"]) if args.tensors else _text(report)))
    # Warnings have been logged by open_weights; what was ignored belongs to the answer.
    write_problems(p for p in source.problems if p.severity is Severity.NOTE)
    return exit_codes.OK


def describe(source: FileSource) -> dict[str, Any]:
    """Return the whole report as plain data; long arrays are cut to their first items."""
    types: dict[str, dict[str, int]] = {}
    for info in source.tensors.values():
        total = types.setdefault(info.type, {"tensors": 0, "parameters": 0, "bytes": 0})
        total["tensors"] += 1
        total["parameters"] += info.numel
        total["bytes"] += info.nbytes
    return {
        "path": source.path,
        "format": source.format,
        **source.details,
        "files": list(source.files),
        "file_bytes": source.file_bytes,
        "parameters": sum(total["parameters"] for total in types.values()),
        "tensor_bytes": sum(total["bytes"] for total in types.values()),
        "types": dict(sorted(types.items(), key=lambda item: -item[1]["bytes"])),
        "metadata": {key: _summary(source, key) for key in source.metadata},
        "tensors": [
            {
                "name": info.name,
                "type": str(info.type),
                "shape": list(info.shape),
                "bytes": info.nbytes,
                "offset": info.offset,
                "file": info.file,
            }
            for info in source.tensors.values()
        ],
        "problems": [dict(problem.to_json()) for problem in source.problems],
    }


def _summary(source: FileSource, key: str) -> dict[str, Any]:
    """Describe one metadata value: ``type`` and ``value``, or ``head`` and ``count`` if long."""
    from kt_core.weights.gguf_metadata import GgufMetadata

    metadata = source.metadata
    if not isinstance(metadata, GgufMetadata):
        return {"type": "string", "value": metadata[key]}
    field = metadata.field(key)
    try:
        if field.count is None or field.count <= _LONG_ARRAY:
            return {"type": field.type_name, "value": metadata[key]}
        return {
            "type": field.type_name,
            "count": field.count,
            "head": metadata.head(key, _LONG_ARRAY),
        }
    except WeightsError as error:
        return {"type": field.type_name, "problem": dict(error.problems[0].to_json())}


def _values(source: FileSource, keys: Sequence[str]) -> dict[str, Any]:
    from kt_core.weights.text import error, nearest, printable

    metadata = source.metadata
    for key in keys:
        if key not in metadata:
            near = nearest(key, metadata)
            raise error(
                "KT442",
                source.path,
                f'has no metadata key "{printable(key)}"',
                facts=[f"nearest of {len(metadata)}: {', '.join(near) or 'none'}"],
                help=f"kt inspect {printable(source.path, 4096)}",
            )
    return {key: metadata[key] for key in keys}


def _write_values(values: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(_finite(values))
        return
    for key, value in values.items():
        if len(values) > 1:
            write(f"{key}:")
        if isinstance(value, str):
            write(value)  # as it is, line breaks included
        else:
            for item in value if isinstance(value, list) else [value]:
                write(_cell(item, None))


def _text(report: Mapping[str, Any]) -> Iterator[str]:
    from kt_core.weights.text import printable

    files = report["files"]
    yield printable(report["path"], 4096)
    facts = [key for key in ("format", "version", "alignment") if key in report]
    yield "  " + "  ".join(f"{key} {report[key]}" for key in facts)
    yield (
        f"  {len(report['tensors'])} tensors, {report['parameters']:,} parameters, "
        f"{human_bytes(report['tensor_bytes'])} of {human_bytes(report['file_bytes'])} in "
        + ("the file" if len(files) == 1 else f"{len(files)} files")
    )
    if len(files) > 1:
        yield from (f"    {printable(path, 4096)}" for path in files)
    yield f"\nmetadata ({len(report['metadata'])})"
    yield from _rows((k, v["type"], _value_cell(v)) for k, v in report["metadata"].items())
    yield f"\ntensors ({len(report['tensors'])})"
    yield from _tensor_rows(report["tensors"])
    yield "\ntotals (type, tensors, parameters, bytes)"
    yield from _rows(
        (name, str(t["tensors"]), f"{t['parameters']:,}", human_bytes(t["bytes"]))
        for name, t in report["types"].items()
    )


def _tensor_rows(tensors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return _rows((t["name"], t["type"], str(t["shape"]), human_bytes(t["bytes"])) for t in tensors)


def _rows(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = list(rows)
    if cells:
        yield table(cells, indent=2)


def _value_cell(value: Mapping[str, Any]) -> str:
    if "problem" in value:
        return f"({value['problem']['message']})"
    items = value.get("head", value.get("value"))
    if not isinstance(items, list):
        return _cell(items, _LONG_TEXT)
    text = ", ".join(_cell(item, 24) for item in items)
    return f"[{text}, … {value['count'] - len(items)} more]" if "count" in value else f"[{text}]"


def _cell(value: Any, limit: int | None) -> str:
    """Return a value on one line, control characters escaped."""
    from kt_core.weights.text import printable

    if isinstance(value, str):
        return printable(value, limit or len(value) + 1)
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _finite(data: Any) -> Any:
    """Return ``data`` with the numbers that JSON cannot hold as texts."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return data
