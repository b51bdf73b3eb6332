"""Reference pages made from the schema, the registry and the catalogue of error codes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kt_core.registry.records import Found
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import KernelSpec, OperatorSpec

_SHAPES = {
    "file": "The file",
    "rule": "A rule",
    "match": "`match`: which modules",
    "replace": "`replace`: by what",
    "kwargs": "`kwargs`: devices, kernels and options",
}
"""Parts of the schema in the order in which a file is written, with their headings."""


def rule_reference() -> str:
    """Every key of a rule file, from its JSON schema."""
    from kt_core.rules.schema import schema_text

    schema: Mapping[str, Any] = json.loads(schema_text())
    lines = ["# Rule reference", "", str(schema["description"]), ""]
    lines += [
        "Keys that are not listed here are errors. Other `kwargs` are options of the operator and "
        "its kernels: see [Operators and kernels](operators.md). `kt schema` prints what this page "
        "was made from.",
        "",
    ]
    for name, title in _SHAPES.items():
        part = schema["$defs"][name]
        lines += [f"## {title}", "", *option_table(part, schema), ""]
    device = schema["$defs"]["device"]
    lines += [
        "## Devices",
        "",
        f"A device is text that matches `{device['pattern']}`: `cpu`, `cuda`, `cuda:1`, and so on. "
        "A number may be left out; it is then 0.",
    ]
    return "\n".join(lines) + "\n"


def operator_reference(registry: Registry) -> str:
    """Every registered operator and kernel, with its options and aliases."""
    lines = [
        "# Operators and kernels",
        "",
        "Names for `class`, `generate_op` and `prefill_op` in a rule file, and the `kwargs` that "
        "go with them. An alias is as good as the name; many are KTransformers' own. `kt plugins` "
        "lists what is installed, `kt docs operators` shows this page for it.",
        "",
        "## Operators",
        "",
    ]
    for operator in registry.operators():
        lines += _operator(operator, registry.names(operator.spec)[1:])
    lines += ["## Kernels", ""]
    for kernel in registry.kernels():
        lines += _kernel(kernel, registry.names(kernel.spec)[1:])
    return "\n".join(lines)


def _operator(found: Found[OperatorSpec], aliases: Sequence[str]) -> Iterator[str]:
    spec = found.spec
    yield f"### `{spec.name}`"
    yield f"\n{spec.summary}\n"
    yield from _facts(
        ("from", found.plugin.distribution),
        ("takes the place of", _codes(spec.replaces) or "any module"),
        ("kernels", f"of kind {spec.kernel_kind}, one per phase" if spec.kernel_kind else "none"),
        ("aliases", _codes(aliases)),
    )
    yield from (*option_table(spec.kwargs_schema), "")


def _kernel(found: Found[KernelSpec], aliases: Sequence[str]) -> Iterator[str]:
    spec = found.spec
    formats = "all that can be dequantised" if spec.weight_formats == ("*",) else ""
    yield f"### `{spec.name}`"
    yield f"\n{spec.summary}\n"
    yield from _facts(
        ("from", found.plugin.distribution),
        ("kind", spec.kind),
        ("devices", _codes(spec.devices)),
        ("weights", formats or _codes(spec.weight_formats)),
        ("aliases", _codes(aliases)),
    )
    yield from (*option_table(spec.options_schema), "")


def error_reference() -> str:
    """Every documented error code."""
    from kt_core.errors.catalogue import AREAS, codes

    lines = [
        "# Troubleshooting by error code",
        "",
        "Every message of kt begins with a code that never changes its meaning. "
        "`kt explain KT210` prints one of these sections, `kt docs KT210` also names the pages "
        "that speak of it.",
        "",
    ]
    for digit, area in AREAS.items():
        group = [code for code in codes().values() if code.id[2] == digit]
        if group:
            lines += [f"## KT{digit}xx: {area}", ""]
        for code in group:
            lines += [
                f"({code.id.lower()})=",
                f"### {code.id}: {_cell(code.title)}",
                "",
                _prose(code.explanation),
                "",
                *fenced(code.example, "text"),
                "",
            ]
    return "\n".join(lines)


def option_table(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> list[str]:
    """A table of a JSON object schema's properties; a sentence where it has none."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not properties:
        return ["It takes no options."]
    required = schema.get("required", ())
    rows = [
        (
            f"`{name}`" + (" (required)" if name in required else ""),
            _values(found, root or schema),
            _code(json.dumps(found["default"])) if "default" in found else "",
            _prose(str(found.get("description", ""))),
        )
        for name, found in properties.items()
        if isinstance(found, Mapping)
    ]
    return table(("key", "values", "default", "meaning"), rows)


def _values(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = root.get("$defs", {}).get(name, {})
        return name if target.get("type") != "array" else f"list of {name}"
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(_code(json.dumps(value)) for value in schema["enum"])
    kind = schema.get("type", "any value")
    words = " or ".join(kind) if isinstance(kind, list | tuple) else str(kind)
    words = {"string": "text", "object": "mapping", "array": "list"}.get(words, words)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{words}, {low} to {high}"
    if low is not None:
        return f"{words}, at least {low}"
    return words if high is None else f"{words}, at most {high}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; columns that are empty in every row are left out."""
    every = list(rows)
    kept = [i for i in range(len(head)) if any(row[i] for row in every)]
    lines = [" | ".join(head[i] for i in kept), " | ".join("---" for _ in kept)]
    lines += [" | ".join(_cell(row[i]) for i in kept) for row in every]
    return [f"| {line} |" for line in lines]


def fenced(text: str, language: str = "") -> list[str]:
    """Lines of a code block, whatever is in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", *text.splitlines(), fence]


def _facts(*pairs: tuple[str, str]) -> Iterator[str]:
    yield from (f"- {what}: {text}" for what, text in pairs if text)
    yield ""


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Plain text as Markdown: what a program wrote must not become markup."""
    marks = {"\\": "\\\\", "<": "&lt;", "*": "\\*", "_": "\\_", "[": "\\["}
    parts = text.split("`")
    # Every second part stands between backticks and is left alone, if they come in pairs.
    whole = len(parts) % 2 == 1
    return "`".join(
        part if whole and index % 2 else "".join(marks.get(c, c) for c in part)
        for index, part in enumerate(parts)
    )
