"""List the installed plugins: state, reason, and what each of them registers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kt_core.cli import exit_codes
from kt_core.cli.output import table, write, write_json

if TYPE_CHECKING:
    from kt_core.cli.plugin_probes import Answers
    from kt_core.registry.records import PluginRecord
    from kt_core.registry.specs import KernelSpec, OperatorSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt plugins``."""
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help="plugins or distributions to show in full"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--probe",
        action="store_true",
        help="ask every probe and import every class, in a process of their own",
    )
    parser.add_argument(
        "--no-load", action="store_true", help="read metadata only, without importing any plugin"
    )


def run(args: argparse.Namespace) -> int:
    """List the plugins; exit 3 if one of those shown cannot be used, or brings what cannot."""
    records = _chosen(_unloaded() if args.no_load else _loaded(), args.name)
    answers = _probed(records) if args.probe and not args.no_load else {}
    if args.format == "json":
        write_json([as_json(record) | probes_as_json(record, answers) for record in records])
    elif args.name or getattr(args, "_own_verbose", 0):
        write("\n\n".join(_in_full(record, answers) for record in records))
    else:
        write(_overview(records, answers))
    found = (record.problem() for record in records)
    problems = [problem for problem in found if problem is not None]
    problems += [answer.problem for found in answers.values() for answer in found if answer.problem]
    return exit_codes.exit_code(problems)


def _probed(records: Sequence[PluginRecord]) -> Answers:
    from kt_core.cli.plugin_probes import probe_all
    from kt_core.registry.registry import default_registry

    return probe_all(default_registry(), records)


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


def _overview(records: Sequence[PluginRecord], answers: Answers) -> str:
    heads = table([(r.name, r.label, str(r.state)) for r in records]).splitlines()
    blocks = []
    for head, record in zip(heads, records, strict=True):
        blocks += [head, *_reason(record)]
        for word, specs in (("operators", record.operators), ("kernels", record.kernels)):
            if specs:
                blocks.append(f"  {word + ':':<10} {', '.join(spec.name for spec in specs)}")
        for word, names in _more(record):
            blocks.append(f"  {word + ':':<10} {', '.join(names)}")
        for answer in answers.get(record.name, ()):
            blocks += answer.lines()
        blocks += [f"  note: {note}" for note in record.notes]
    return "\n".join(blocks)


def _more(record: PluginRecord) -> Iterator[tuple[str, list[str]]]:
    """Yield what else a plugin brings: a word for it, and the names."""
    if record.rules:
        yield "rules", [str(rule) for rule in record.rules]
    if record.aliases:
        yield "aliases", [f"{alias.name} ({alias.stands_for})" for alias in record.aliases]
    if record.architectures:
        yield "models", [f"{spec.gguf} ({spec.name})" for spec in record.architectures]
    if record.commands:
        yield "commands", [f"kt {spec.name}" for spec in record.commands]
    if record.devices:
        yield "devices", [spec.name for spec in record.devices]


def _reason(record: PluginRecord) -> list[str]:
    if not record.code:
        return []
    lines = [f"  {record.code} {record.reason}", *(f"    {fact}" for fact in record.facts)]
    return [*lines, f"  help: {record.help}"] if record.help else lines


def _in_full(record: PluginRecord, answers: Answers) -> str:
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
    for word, names in _more(record):
        lines += [f"  {word}: {name}" for name in names]
    for answer in answers.get(record.name, ()):
        lines += answer.lines()
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
        "aliases": [vars(alias) for alias in record.aliases],
        "architectures": [vars(spec) for spec in record.architectures],
        "commands": [vars(spec) for spec in record.commands],
        "devices": [vars(spec) for spec in record.devices],
    }


def probes_as_json(record: PluginRecord, answers: Answers) -> dict[str, Any]:
    """Return what the probes of a plugin said, if they were asked."""
    if not answers:
        return {}
    return {"probes": [answer.as_json() for answer in answers.get(record.name, ())]}
