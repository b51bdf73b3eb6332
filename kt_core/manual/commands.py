"""The reference of commands, made from their argument parsers."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kt_core.manual.references import fenced, table

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry


def command_parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield (name, one-line summary, parser) of every ``kt`` command."""
    from kt_core.cli.main import Parser
    from kt_core.cli.table import COMMANDS

    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        description = (module.__doc__ or command.summary).strip()
        parser = Parser(prog=f"kt {name}", description=description, conflict_handler="resolve")
        module.add_arguments(parser)
        yield name, command.summary, parser


def command_reference(registry: Registry) -> str:
    """Every command with its options, and those that plugins add."""
    lines = [
        "# Commands",
        "",
        "`kt-validate` is `kt validate` as a program of its own. "
        "Every command also takes `-v` (say what is being done), `-q` (only errors) and `--help`. "
        "Results go to standard output, messages to standard error. Exit codes: 0 fine, 1 the input "
        "is wrong, 2 the command was called wrongly, 3 something is missing in the installation.",
        "",
    ]
    commands = list(command_parsers())
    lines += table(("command", "does"), [(f"`kt {name}`", said) for name, said, _ in commands])
    for _, _, parser in commands:
        lines += _section(parser, 2)
    added = registry.commands()
    if added:
        lines += ["", "## Commands of plugins", "", "`kt NAME --help` tells more about each.", ""]
        lines += table(
            ("command", "does", "from"),
            [(f"`kt {n}`", spec.summary, plugin.label) for n, (spec, plugin) in added.items()],
        )
    return "\n".join(lines) + "\n"


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """What a command can be told to do, where it has actions such as ``list`` and ``show``."""
    found = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {name: child for action in found for name, child in action.choices.items()}


def _section(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """A command, or an action of one, under a heading of ``level``; its actions follow."""
    options = list(_options(parser))
    yield from ("", f"{'#' * level} `{parser.prog}`", "")
    yield from (*fenced(_usage(parser), "text"), "")
    yield from _about(parser.description or "")
    if options:
        yield from table(("option", "meaning"), options)
    if parser.epilog:
        yield from ("", *fenced(parser.epilog, "text"))
    for child in actions(parser).values():
        yield from _section(child, level + 1)


def _usage(parser: argparse.ArgumentParser) -> str:
    # The width would otherwise be that of the terminal in which the page is made.
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
    return parser.format_usage().rstrip().removeprefix("usage: ").replace("\n       ", "\n")


def _about(text: str) -> Iterator[str]:
    """A command's description; what is indented in it is shown as it is."""
    for block in re.split(r"\n\s*\n", text.replace("``", "`")):
        lines = block.splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            yield from fenced("\n".join(line[4:] for line in lines), "text")
        else:
            yield " ".join(block.split())
        yield ""


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(
            action, argparse._HelpAction | argparse._SubParsersAction
        ):
            continue
        words = (action.help or "").replace("%(default)s", str(action.default))
        if action.choices is not None:
            words = f"{words}; one of {', '.join(map(str, action.choices))}".removeprefix("; ")
        yield f"`{_written(action)}`", words.replace("%%", "%")


def _written(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    value = " ".join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        return f"{value} …" if action.nargs in ("*", "+") else value
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"
