"""List the installed plugins: state, reason, and what each of them registers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kt_core.cli import exit_codes
from kt_core.cli.output import table, write, write_json

if TYPE_CHECKING:
    from kt_core.registry.records import PluginRecord
    from kt_core.registry.specs import KernelSpec, OperatorSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt plugins``."""
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help="plugins or distributions to show in full"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--no-load", action="store_true", help="read metadata only, without importing any plugin"
    )


def run(args: argparse.Namespace) -> int:
    """List the plugins; exit 3 if one of those shown cannot be used."""
    records = _chosen(_unloaded() if args.no_load else _loaded(), args.name)
    if args.format == "json":
        write_json([as_json(record) for record in records])
    elif args.name:
        write("\n\n".join(_in_full(record) for record in records))
    else:
        write(_overview(records))
    problems = (record.problem() for record in records)
    return exit_codes.exit_code(problem for problem in problems if problem is not None)


def _loaded() -> Sequence[PluginRecord]:
    from kt_core.registry.registry import default_registry

    return default_registry().plugins


def _unloaded() -> Sequence[PluginRecord]:
    from dataclasses import replace

    from kt_core.registry.allowlist import ALLOW_VARIABLE, allow
    from kt_core.registry.candidates import find_candidates, refuse_namesakes
    from kt_core.registry.records import State
    from kt_core.registry.registry import core_candidate

    candidates, refused = allow(*find_candidates(), os.environ.get(ALLOW_VARIABLE))
    distinct, namesakes = refuse_namesakes([core_candidate(), *candidates])
    found = [replace(candidate.record(), state=State.NOT_LOADED) for candidate in distinct]
    return sorted([*found, *namesakes, *refused], key=lambda record: record.name)


def _chosen(records: Sequence[PluginRecord], names: Sequence[str]) -> Sequence[PluginRecord]:
    from kt_core.errors import UsageError
    from kt_core.registry.candidates import canonical
    from kt_core.rules.suggest import did_you_mean

    wanted = {canonical(name): name for name in names}
    chosen = [r for r in records if {canonical(r.name), canonical(r.distribution)} & wanted.keys()]
    known = {canonical(word) for r in records for word in (r.name, r.distribution)}
    for key in sorted(wanted.keys() - known):
        near = did_you_mean(wanted[key], sorted({r.name for r in records}))
        raise UsageError.of(
            "KT703",
            f'no plugin "{wanted[key]}" is installed',
            facts=[f"installed: {', '.join(r.name for r in records)}"],
            help=f'did you mean "{near}"?' if near else "kt plugins lists them",
        )
    return chosen if names else records


def _overview(records: Sequence[PluginRecord]) -> str:
    heads = table([(r.name, r.label, str(r.state)) for r in records]).splitlines()
    blocks = []
    for head, record in zip(heads, records, strict=True):
        blocks += [head, *_reason(record)]
        for word, specs in (("operators", record.operators), ("kernels", record.kernels)):
            if specs:
                blocks.append(f"  {word + ':':<10} {', '.join(spec.name for spec in specs)}")
        if record.rules:
            blocks.append(f"  {'rules:':<10} {', '.join(str(rule) for rule in record.rules)}")
        blocks += [f"  note: {note}" for note in record.notes]
    return "\n".join(blocks)


def _reason(record: PluginRecord) -> list[str]:
    if not record.code:
        return []
    lines = [f"  {record.code} {record.reason}", *(f"    {fact}" for fact in record.facts)]
    return [*lines, f"  help: {record.help}"] if record.help else lines


def _in_full(record: PluginRecord) -> str:
    lines = [f"{record.name}: {record.state}", f"  distribution: {record.label}"]
    lines += [f"  module: {record.module}"] if record.module else []
    lines += [f"  found in: {record.location}"] if record.location else []
    if record.load_seconds:
        lines.append(f"  registered in: {record.load_seconds * 1e3:.1f} ms")
    lines += _reason(record)
    for operator in record.operators:
        lines += _spec("operator", operator, kernels=operator.kernel_kind)
    for kernel in record.kernels:
        lines += _spec(
            "kernel",
            kernel,
            kind=kernel.kind,
            devices=", ".join(kernel.devices),
            weights=", ".join(kernel.weight_formats).replace("*", "all that can be dequantised"),
        )
    lines += [f"  rule file {rule}" for rule in record.rules]
    lines += [f"  note: {note}" for note in record.notes]
    return "\n".join(lines)


def _spec(word: str, spec: OperatorSpec | KernelSpec, **more: str | None) -> list[str]:
    lines = [f"  {word} {spec.name}", f"    {spec.summary}"]
    lines += [f"    {key}: {value}" for key, value in more.items() if value]
    return [*lines, f"    aliases: {', '.join(spec.aliases)}"] if spec.aliases else lines


def as_json(record: PluginRecord) -> dict[str, Any]:
    """Return a record as plain data."""
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "module": record.module,
        "location": record.location,
        "state": str(record.state),
        "code": record.code or None,
        "reason": record.reason or None,
        "facts": list(record.facts),
        "help": record.help or None,
        "notes": list(record.notes),
        "operators": [
            {
                "name": spec.name,
                "aliases": list(spec.aliases),
                "summary": spec.summary,
                "kernel_kind": spec.kernel_kind,
            }
            for spec in record.operators
        ],
        "kernels": [
            {
                "name": spec.name,
                "aliases": list(spec.aliases),
                "summary": spec.summary,
                "kind": spec.kind,
                "devices": list(spec.devices),
                "weight_formats": list(spec.weight_formats),
            }
            for spec in record.kernels
        ],
        "rules": [str(rule) for rule in record.rules],
    }
