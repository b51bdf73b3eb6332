"""Write a plugin to start from: a small distribution that builds, whose tests pass as written."""

from __future__ import annotations

import argparse
from pathlib import Path

from kt_core.cli import exit_codes
from kt_core.cli.output import write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt new-plugin``."""
    from kt_core.templates.render import COMPUTES, LICENSES

    parser.add_argument("name", metavar="NAME", help="the distribution's name, such as kt-toy")
    parser.add_argument(
        "--kind",
        choices=tuple(COMPUTES),
        default="linear",
        help="what it brings: a kernel for linear layers or experts, an operator, only rule files",
    )
    parser.add_argument(
        "--native",
        choices=("none", "c", "cuda", "triton"),
        default="none",
        help="what it is written in beside Python (none: plain torch)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write to (default: NAME)"
    )
    parser.add_argument("--license", choices=LICENSES, default=LICENSES[0])
    parser.add_argument("--author", default="", help="who the licence and the metadata name")


def run(args: argparse.Namespace) -> int:
    """Write the files and say what to do next."""
    import datetime

    from kt_core.templates.render import Choice, render

    folder = args.output if args.output is not None else Path(args.name)
    year = datetime.datetime.now(tz=datetime.UTC).year
    files = render(Choice(args.name, args.kind, args.native, args.license, args.author, year))
    write_files(folder, files)
    write(f"wrote {len(files)} files to {folder}")
    write(f"next: cd {folder} && pip install . && kt plugins {args.name} && pytest")
    return exit_codes.OK


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write ``files`` below ``folder``, which must be new or empty.

    Raises:
        UsageError: KT742 if something is there, or it cannot be written.
    """
    from kt_core.errors import UsageError

    way_out = "choose another folder: --output DIR"
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError.of(
                "KT742",
                f"{folder} exists already; kt new-plugin overwrites nothing",
                help=way_out,
            )
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError.of(
            "KT742", f"{folder} cannot be written: {error.strerror or error}", help=way_out
        ) from error
