"""``kt inspect``: what a weight file holds, without reading a weight."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kt_core.errors import WeightsError

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
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--strict", action="store_true", help="bytes after the last tensor are an error"
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0, or 1 if the file is wrong."""
    from kt_core.weights import open_weights

    try:
        with open_weights(args.path, strict=args.strict) as source:
            if args.metadata:
                return _print_values(source, args.metadata, args.format)
            report = describe(source)
    except WeightsError as error:
        if args.format == "json":
            _print_json({"path": args.path, "problems": [p.to_json() for p in error.problems]})
        else:
            print(error, file=sys.stderr)
        return 1
    if args.format == "json":
        _print_json({"tensors": report["tensors"]} if args.tensors else report)
        return 0
    lines = _tensor_lines(report["tensors"]) if args.tensors else _text(report)
    print("\n".join(lines))
    for problem in source.problems:
        print(problem.render(), file=sys.stderr)
    return 0


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
        "problems": [problem.to_json() for problem in source.problems],
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
        return {"type": field.type_name, "problem": error.problems[0].to_json()}


def _print_values(source: FileSource, keys: Sequence[str], form: str) -> int:
    from kt_core.weights.text import error, nearest, printable

    metadata = source.metadata
    values = {}
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
        values[key] = metadata[key]
    if form == "json":
        _print_json(values)
        return 0
    for key, value in values.items():
        if len(values) > 1:
            print(f"{key}:")
        for item in value if isinstance(value, list) else [value]:
            print(_text_block(item) if not isinstance(value, list) else _cell(item, None))
    return 0


def _text(report: Mapping[str, Any]) -> list[str]:
    from kt_core.weights.text import printable

    head = "  ".join(
        f"{key} {report[key]}" for key in ("format", "version", "alignment") if key in report
    )
    lines = [
        printable(report["path"], 4096),
        f"  {head}",
        f"  {len(report['tensors'])} tensors, {report['parameters']:,} parameters, "
        f"{_size(report['tensor_bytes'])} of {_size(report['file_bytes'])} in the file"
        + ("s" if len(report["files"]) > 1 else ""),
    ]
    if len(report["files"]) > 1:
        lines += [f"  {len(report['files'])} parts:"]
        lines += [f"    {printable(path, 4096)}" for path in report["files"]]
    lines += ["", f"metadata ({len(report['metadata'])})"]
    lines += _table(
        (key, value["type"], _value_cell(value)) for key, value in report["metadata"].items()
    )
    lines += ["", f"tensors ({len(report['tensors'])})", *_tensor_lines(report["tensors"])]
    lines += ["", "totals"]
    lines += _table(
        [("type", "tensors", "parameters", "bytes")]
        + [
            (name, str(t["tensors"]), f"{t['parameters']:,}", _size(t["bytes"]))
            for name, t in report["types"].items()
        ]
    )
    return lines


def _tensor_lines(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    return _table((t["name"], t["type"], str(t["shape"]), _size(t["bytes"])) for t in tensors)


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


def _text_block(value: Any) -> str:
    """Return a value as it is, line breaks kept, other control characters escaped."""
    if not isinstance(value, str):
        return _cell(value, None)
    return "\n".join(_cell(line, None) for line in value.split("\n"))


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Align columns; all but the last are padded."""
    cells = list(rows)
    if not cells:
        return []
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]) - 1)]
    return [
        "  "
        + "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    ]


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    unit = min(int(math.log2(count) // 10), 5)
    return f"{count / 1024**unit:.1f} {'KMGTP'[unit - 1]}iB"


def _print_json(data: Any) -> None:
    """Print JSON in ASCII: escapes leave a terminal alone, and NaN is no JSON."""
    print(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return data
