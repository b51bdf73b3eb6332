"""List the rule files that came with kt and its plugins, show one, begin one, modernise one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kt_core.cli import exit_codes
from kt_core.cli.output import table, write, write_json, write_problems

if TYPE_CHECKING:
    from kt_core.errors import Problem
    from kt_core.registry.registry import Registry
    from kt_core.rules.select import RuleFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the rule files", description="List rule files.")
    listing.add_argument("architecture", nargs="?", help="only those for it, such as qwen3")
    listing.add_argument("--format", choices=("text", "json"), default="text")
    show = actions.add_parser("show", help="print one", description="Print a rule file.")
    show.add_argument("name", help="such as qwen3_moe/hybrid")
    new = actions.add_parser(
        "new",
        help="write a first file for a model",
        description="Write a commented rule file for a model, from its header and skeleton.",
    )
    new.add_argument("--gguf", metavar="FILE", help="GGUF file, or a folder with one model")
    new.add_argument("--model", metavar="DIR", help="folder with config.json")
    new.add_argument(
        "--device", default="auto", help="where to place it: cpu, cuda:0 (default: auto)"
    )
    new.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
    modern = actions.add_parser(
        "migrate",
        help="bring a file of KTransformers up to date",
        description="Write the modern form of a KTransformers rule file and list every change.",
    )
    modern.add_argument("file", metavar="FILE", help="rule file, or -")
    modern.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
    modern.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Do what is asked and return the exit code."""
    actions: dict[str, Any] = {
        "list": _list,
        "show": _show,
        "new": _new,
        "migrate": _migrate,
    }
    return int(actions[args.action](args))


# --- list, show -----------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    from kt_core.errors import UsageError
    from kt_core.registry.registry import default_registry
    from kt_core.rules.select import available_rules
    from kt_core.rules.text import listed

    registry = default_registry()
    files = available_rules(registry)
    if args.architecture is not None:
        wanted = args.architecture.casefold()
        chosen = [
            file
            for file in files
            if _folder(file) == wanted or wanted in (a.casefold() for a in file.architectures)
        ]
        if not chosen:
            raise UsageError.of(
                "KT738",
                f'there is no rule file for "{args.architecture}"',
                facts=[
                    f"there are files for: {listed(sorted({_folder(f) for f in files}), most=40)}"
                ],
                help="kt rules new --gguf FILE writes a first one",
            )
        files = tuple(chosen)
    rows = [_described(file, registry) for file in files]
    if args.format == "json":
        write_json({"version": 1, "files": rows})
        return exit_codes.OK
    header = ("name", "architectures", "devices", "needs", "description")
    lines = [
        (
            row["name"],
            " ".join(row["architectures"]),
            _shortened(row["devices"]),
            " ".join(row["needs"]) + ("" if row["usable"] else " (not here)"),
            row["description"],
        )
        for row in rows
    ]
    write(table([header, *lines]))
    return exit_codes.OK


def _shortened(devices: Sequence[str]) -> str:
    """``cuda:0 cuda:1 cuda:2`` -> ``cuda:0-2``."""
    numbered = [name for name in devices if ":" in name]
    if len(numbered) < 3:
        return " ".join(devices)
    plain = [name for name in devices if ":" not in name]
    return " ".join([*plain, f"{numbered[0]}-{numbered[-1].rpartition(':')[2]}"])


def _described(file: RuleFile, registry: Registry) -> dict[str, Any]:
    """What a list says about a file; ``usable``: all it names is registered here."""
    from kt_core.registry.known import distribution_for
    from kt_core.rules.load import check_text

    checked = check_text(file.text, file.name, registry)
    needs = {"kt-core"}
    devices: set[str] = set()
    for word in _named(file):
        operator, kernel = registry.operator(word), registry.kernel(word)
        found = operator or kernel
        owner = found.plugin.distribution if found is not None else distribution_for(word)
        needs |= {owner} if owner else set()
    devices = set(_devices(file))
    return {
        "name": _short(file),
        "distribution": file.distribution,
        "architectures": list(file.architectures),
        "variant": file.variant,
        "devices": sorted(devices),
        "needs": sorted(needs),
        "usable": checked.ruleset is not None,
        "description": file.description,
    }


def _kwargs(file: RuleFile) -> Iterable[tuple[str, dict[str, Any]]]:
    from kt_core.rules.problems import Problems
    from kt_core.rules.source import read_tree
    from kt_core.rules.structure import read_document

    problems = Problems(file.name)
    for draft in read_document(read_tree(file.text, problems), problems).rules:
        yield draft.replace_class or "", draft.kwargs or {}


def _named(file: RuleFile) -> Iterable[str]:
    for replace_class, kwargs in _kwargs(file):
        if replace_class not in ("", "default"):
            yield replace_class
        yield from (str(kwargs[key]) for key in ("generate_op", "prefill_op") if key in kwargs)


def _devices(file: RuleFile) -> Iterable[str]:
    for _, kwargs in _kwargs(file):
        for key in ("generate_device", "prefill_device", "out_device"):
            if key in kwargs:
                yield str(kwargs[key])


def _show(args: argparse.Namespace) -> int:
    from kt_core.errors import UsageError
    from kt_core.registry.registry import default_registry
    from kt_core.rules.select import available_rules
    from kt_core.rules.suggest import did_you_mean

    files = available_rules(default_registry())
    wanted = args.name.removeprefix("rules/").removesuffix(".yaml").removesuffix(".yml")
    found = [file for file in files if wanted in (_short(file), file.name)]
    if not found:
        near = did_you_mean(wanted, [_short(file) for file in files])
        raise UsageError.of(
            "KT738",
            f'there is no rule file "{args.name}"',
            help=f"did you mean {near}?" if near else "list them: kt rules list",
        )
    write(found[0].text.decode("utf-8").rstrip("\n"))
    return exit_codes.OK


def _short(file: RuleFile) -> str:
    """``rules/qwen3/cpu.yaml`` -> ``qwen3/cpu``; a plugin's ``package:path`` keeps its package."""
    return file.name.removeprefix("rules/").rpartition(".")[0]


def _folder(file: RuleFile) -> str:
    return _short(file).rpartition("/")[0].rpartition(":")[2].casefold()


# --- new ------------------------------------------------------------------------------------------


def _new(args: argparse.Namespace) -> int:
    from kt_core.errors import UsageError
    from kt_core.plan import starter
    from kt_core.runtime.load import prepare

    if args.gguf is None and args.model is None:
        raise UsageError.of("KT725", "neither weights nor a model folder were given")
    prepared = prepare(args.gguf, model=args.model, rules="none", device=CPU)
    try:
        machine = _machine(args.device)
        groups = starter.groups_of(prepared.model, prepared.plan)
        placement = starter.place(groups, prepared.plan, machine)
        text = _first_that_plans(prepared, groups, placement, machine)
    finally:
        if prepared.source is not None:
            prepared.source.close()
    _deliver(text, args.output)
    return exit_codes.OK


CPU = "cpu"


def _machine(device: str) -> Any:
    """The machine as far as ``device`` (``"auto"``: all of it) allows to use it."""
    import torch

    from kt_core.plan.devices import canonical
    from kt_core.plan.starter import Machine
    from kt_core.registry import machine

    memory = machine.memory()
    room = memory.limit or memory.total
    gpus: dict[str, int] = {}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpus[f"cuda:{index}"] = int(torch.cuda.mem_get_info(index)[0])
    if device != "auto":
        wanted = canonical(device)
        gpus = {} if wanted == CPU else {wanted: gpus.get(wanted, 1 << 62)}
    return Machine(gpus, room)


def _first_that_plans(prepared: Any, groups: Sequence[Any], placement: Any, machine: Any) -> str:
    """Give each group the best kernel with which the whole can be planned."""
    from kt_core.plan import starter
    from kt_core.registry.specs import EXPERTS

    chosen: dict[str, str | None] = {}
    for group in groups:
        if not group.kind:
            continue
        device = placement.experts if group.kind == EXPERTS else placement.main
        names = starter.candidates(prepared.registry, group.kind, device, group, prepared.plan)
        for name in (*names, None):
            attempt = {**chosen, group.what: name}
            text = starter.text(prepared.plan, groups, placement, machine, attempt)
            if name is None or _plans(prepared, text, (placement.main, placement.experts)):
                chosen[group.what] = name
                break
    return starter.text(prepared.plan, groups, placement, machine, chosen)


def _plans(prepared: Any, text: str, devices: Iterable[str]) -> bool:
    from kt_core.plan.build import make_plan
    from kt_core.rules.load import check_text

    checked = check_text(text, "<new>", prepared.registry)
    if checked.ruleset is None:
        return False
    plan = make_plan(
        prepared.model,
        checked.ruleset,
        source=prepared.source,
        registry=prepared.registry,
        default_device=CPU,
        assume_devices=[device for device in devices if device != CPU],
    )
    return not plan.errors


# --- migrate --------------------------------------------------------------------------------------


def _migrate(args: argparse.Namespace) -> int:
    from kt_core.registry.registry import default_registry
    from kt_core.rules.load import STDIN, read_bytes
    from kt_core.rules.migrate import migrate

    registry = default_registry()
    shown = "<stdin>" if args.file == STDIN else args.file
    data = read_bytes(args.file)
    migrated = migrate(_decoded(data, shown, registry), shown, registry)
    left: tuple[Problem, ...] = migrated.left
    if args.format == "json":
        write_json(
            {
                "version": 1,
                "text": migrated.text,
                "changes": [vars(change) for change in migrated.changes],
                "problems": [problem.to_json() for problem in left],
            }
        )
        return exit_codes.exit_code(left)
    _deliver(migrated.text, args.output)
    for change in migrated.changes:
        write(str(change), sys.stderr)
    if left:
        write(f"\n{len(left)} findings are left in the new file:", sys.stderr)
        write_problems(left)
    return exit_codes.exit_code(left)


def _decoded(data: bytes, path: str, registry: Registry) -> str:
    from kt_core.errors import RuleError, Severity
    from kt_core.rules.load import check_text

    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        problems = check_text(data, path, registry).problems
        raise RuleError(p for p in problems if p.severity is Severity.ERROR) from None


def _deliver(text: str, output: str | None) -> None:
    """Print ``text``, or write it to a new file.

    Raises:
        UsageError: KT739 if the file is there already, or cannot be written.
    """
    from kt_core.errors import UsageError

    if output is None:
        write(text.rstrip("\n"))
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError.of(
            "KT739", f"{output} is there already", help="name another file, or delete that one"
        ) from None
    except OSError as error:
        raise UsageError.of(
            "KT739", f"{output} cannot be written: {error.strerror or error}"
        ) from error
