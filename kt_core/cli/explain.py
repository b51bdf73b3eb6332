"""Say what an error code means, why it is an error and what to do."""

from __future__ import annotations

import argparse

from kt_core.cli import exit_codes
from kt_core.cli.output import write, write_json
from kt_core.errors.codes import Code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt explain``."""
    parser.add_argument("code", nargs="*", metavar="CODE", help="such as KT210; none lists all")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Explain the codes asked for, or list all."""
    from dataclasses import asdict

    from kt_core.errors.catalogue import codes

    chosen = [_find(word) for word in args.code] or list(codes().values())
    if args.format == "json":
        write_json([asdict(code) for code in chosen])
    elif args.code:
        write("\n\n".join(_full(code) for code in chosen))
    else:
        write(_listing())
    return exit_codes.OK


def _find(word: str) -> Code:
    from kt_core.errors import UsageError
    from kt_core.errors.catalogue import codes, find
    from kt_core.rules.suggest import did_you_mean

    code = find(word)
    if code is None:
        start = (known for known in codes() if known.startswith(word.upper()))
        near = next(start, None) or did_you_mean(word.upper(), codes())
        raise UsageError.of(
            "KT702",
            f'"{word}" is not an error code of kt',
            help=(f"did you mean {near}? " if near else "") + "kt explain lists all codes",
        )
    return code


def _full(code: Code) -> str:
    import textwrap

    example = textwrap.indent(code.example, "    ")
    return "\n".join(
        (f"{code.id}: {code.title}", "", textwrap.fill(code.explanation, 88), "", example)
    )


def _listing() -> str:
    from kt_core.errors.catalogue import AREAS, codes

    lines: list[str] = []
    for digit, area in AREAS.items():
        group = [code for code in codes().values() if code.id[2] == digit]
        if group:
            lines += ["", f"KT{digit}xx: {area}"]
            lines += [f"  {code.id}  {code.title}" for code in group]
    return "\n".join(lines[1:])
