"""``kt COMMAND …``: find the command, run it, turn whatever happens into an exit code.

Start-up is kept short: a command's module is imported when that command is called, and ``--help``
and ``--version`` import none.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

from kt_core import __version__
from kt_core.cli import exit_codes
from kt_core.cli.output import write, write_problems
from kt_core.errors import KtError, Problem, UsageError


@dataclass(frozen=True)
class Command:
    """Where a command lives. Its module has ``add_arguments(parser)`` and ``run(args) -> int``."""

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "validate": Command("kt_core.cli.validate", "check rule files, all problems at once"),
        "schema": Command("kt_core.cli.schema", "print the JSON schema of rule files, for editors"),
        "docs": Command("kt_core.cli.docs", "show the documentation, offline"),
        "explain": Command("kt_core.cli.explain", "say more about an error code"),
        "plugins": Command("kt_core.cli.plugins", "list plugins and what they register"),
        "doctor": Command("kt_core.cli.doctor", "show what this machine and installation offer"),
        "plan": Command("kt_core.cli.plan", "show what would run where, without reading weights"),
        "inspect": Command("kt_core.cli.inspect", "show the metadata and tensors of a weight file"),
        "chat": Command("kt_core.cli.chat", "talk to a model"),
        "rules": Command("kt_core.cli.rules", "list, show, begin or modernise rule files"),
        "verify": Command("kt_core.cli.verify", "find the module that computes something wrong"),
        "bench": Command("kt_core.cli.bench", "measure how fast a model runs here"),
        "quantize": Command("kt_core.cli.quantize", "prepare experts for a kernel, once"),
        "new-plugin": Command("kt_core.cli.new_plugin", "write a plugin to start from"),
    }
)

DEBUG_VARIABLE = "KT_DEBUG"
"""Set to 1, it shows the traceback of every error."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are coded problems (KT700) instead of a bare exit."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` with the nearest option, where one was misspelt."""
        from kt_core.rules.suggest import did_you_mean

        more = f"{self.prog} --help lists all options"
        for word in re.findall(r"(?<!\S)--?[\w-]+", message):
            options = sorted(set(re.findall(r"(?<!\S)--[\w-]+", self.format_help())))
            near = did_you_mean(word, options)
            if near is not None and near != word:
                more = f"did you mean {near}? {more}"
                break
        raise UsageError.of("KT700", f"{self.prog}: {message}", help=more)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kt`` with ``argv`` (default: the process' own) and return its exit code."""
    return guarded(lambda: _dispatch(list(sys.argv[1:] if argv is None else argv)))


def standalone(name: str, argv: Sequence[str] | None = None) -> int:
    """Run one command as a program of its own, such as ``kt-validate``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(name, arguments, prog=f"kt-{name}"))


def guarded(call: Callable[[], int]) -> int:
    """Return what ``call`` returns, or the exit code of what it raises, which is reported."""
    try:
        for stream in (sys.stdout, sys.stderr):
            _write_anything(stream)
        code = call()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _stop_writing()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except KtError as error:
        return _report(error.problems)
    except Exception as error:  # noqa: BLE001 - the last line of defence: nothing leaves untranslated
        return _report([_unexpected(error)])


def _dispatch(argv: list[str]) -> int:
    top = _top_parser()
    split = next((i for i, word in enumerate(argv) if not word.startswith("-")), len(argv))
    options, command, rest = argv[:split], argv[split : split + 1], argv[split + 1 :]
    parsed = top.parse_args(options)
    if parsed.version:
        write(f"kt {__version__}")
        return exit_codes.OK
    if parsed.help:
        write(top.format_help().rstrip())
        return exit_codes.OK
    if command == ["help"]:
        if not rest:
            write(top.format_help().rstrip())
            return exit_codes.OK
        command, rest = rest[:1], ["--help"]
    if not command:
        write(top.format_help().rstrip(), sys.stderr)
        return exit_codes.USAGE
    verbosity = parsed.verbose - parsed.quiet
    if command[0] not in COMMANDS:
        from kt_core.cli.plugin_commands import run_plugin_command

        return run_plugin_command(command[0], rest, verbosity)
    return _run(command[0], rest, prog=f"kt {command[0]}", verbosity=verbosity)


def _run(name: str, argv: list[str], *, prog: str, verbosity: int = 0) -> int:
    command = COMMANDS[name]
    return run_module(importlib.import_module, command, argv, prog=prog, verbosity=verbosity)


def run_module(
    load: Callable[[str], Any],
    command: Command,
    argv: list[str],
    *,
    prog: str,
    verbosity: int = 0,
) -> int:
    """Import a command's module with ``load``, parse ``argv`` and run it."""
    try:
        module: Any = load(command.module)
        description = (module.__doc__ or command.summary).strip()
        parser = Parser(prog=prog, description=description, conflict_handler="resolve")
        _add_verbosity(parser, "_own_")
        module.add_arguments(parser)
        try:
            args = parser.parse_args(argv)
        except SystemExit as stop:  # --help was printed
            return stop.code if isinstance(stop.code, int) else exit_codes.OK
        _set_up_logging(verbosity + args._own_verbose - args._own_quiet)
        return int(module.run(args))
    except ModuleNotFoundError as error:
        from kt_core.registry.targets import TORCH_EXTRA, missing_extra

        package = (error.name or "").partition(".")[0]
        if package in TORCH_EXTRA:
            raise missing_extra(f"{prog} needs {package}") from error
        raise


def _top_parser() -> Parser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    parser = Parser(
        prog="kt",
        usage="kt [-v | -q] COMMAND …",
        description="Run large language models with operators chosen by a rule file.",
        epilog="commands:\n"
        + "\n".join(lines)
        + "\n\nPlugins may add more: kt plugins lists them. kt COMMAND --help tells more about one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    parser.add_argument("--version", action="store_true", help="show the version")
    _add_verbosity(parser, "")
    return parser


def _add_verbosity(parser: argparse.ArgumentParser, prefix: str) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        dest=f"{prefix}verbose",
        action="count",
        default=0,
        help="say what is being done; -vv for details",
    )
    group.add_argument(
        "-q", "--quiet", dest=f"{prefix}quiet", action="count", default=0, help="only say errors"
    )


def _set_up_logging(verbosity: int) -> None:
    """Send kt's log to standard error: warnings, and with -v what is being done."""
    levels = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}
    level = levels.get(max(verbosity, -1), logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("kt_core")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def unknown_command(word: str, more: Sequence[str] = ()) -> UsageError:
    """Return the error for a word that is neither a command of kt's nor one ``more`` of plugins."""
    from kt_core.rules.suggest import did_you_mean

    near = did_you_mean(word, (*COMMANDS, *more))
    return UsageError.of(
        "KT701",
        f'"{word}" is not a command of kt',
        facts=[f"commands: {', '.join((*COMMANDS, *more))}"],
        help=f"did you mean kt {near}?" if near else "kt --help",
    )


def _unexpected(error: Exception) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return Problem(
        "KT790",
        f"kt failed unexpectedly: {text}",
        facts=(f"at {frames[-1].filename}:{frames[-1].lineno}",) if frames else (),
        help=f"{DEBUG_VARIABLE}=1 shows the whole traceback; please report it",
    )


def _report(problems: Sequence[Problem]) -> int:
    """Write the problems of the exception being handled and return the exit code."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exc()
    write_problems(problems)
    if any(problem.code == "KT790" for problem in problems):
        return exit_codes.INTERNAL
    return exit_codes.exit_code(problems)


def _write_anything(stream: TextIO) -> None:
    """Let a stream of a narrow encoding escape what it cannot show instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _stop_writing() -> int:
    """End quietly after the reader of our output went away, also when Python flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(null, sys.stdout.fileno())
    return exit_codes.BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
