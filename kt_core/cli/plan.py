"""``kt plan``: what loading would do, without doing it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kt_core.cli.counts import at_least
from kt_core.cli.model_options import add_model_options, model_arguments
from kt_core.cli.output import write, write_problems

if TYPE_CHECKING:
    from kt_core.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_model_options(parser)
    parser.add_argument(
        "--context",
        type=at_least(0),
        default=4096,
        metavar="N",
        help="tokens to size the cache for",
    )
    parser.add_argument(
        "--assume-devices",
        default="",
        metavar="LIST",
        help="plan as if these were here: cuda:0,cuda:1",
    )
    parser.add_argument("--modules", action="store_true", help="list every module")
    parser.add_argument("--why", metavar="MODULE", help="say which rule won a module, and why")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the plan as a page for a browser, which needs no network; - for standard output",
    )
    parser.epilog = (
        "Reads headers only. Exit: 0 the plan can be carried out, 1 it cannot, 2 wrong usage, "
        "3 an operator is missing or cannot run here."
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; return the exit status."""
    from kt_core.cli.exit_codes import exit_code
    from kt_core.errors import Severity
    from kt_core.plan.render import module_lines, summary
    from kt_core.runtime.load import prepare

    prepared = prepare(
        args.gguf,
        **model_arguments(args),
        context=args.context,
        assume_devices=[name for name in args.assume_devices.split(",") if name],
    )
    if prepared.source is not None:
        prepared.source.close()
    plan = prepared.plan
    if args.why is not None:
        from kt_core.plan.why import why

        write(why(prepared.model, prepared.rules, plan, args.why))
    elif args.html is not None:
        _write_page(plan, args.html)
    elif args.format == "json":
        print(plan.dumps())
    else:
        write(summary(plan))
        if args.modules:
            write("")
            for line in module_lines(plan):
                write(line)
    write_problems(plan.problems)
    if plan.errors:
        return exit_code(plan.errors)
    if args.strict and any(p.severity is Severity.WARNING for p in plan.problems):
        return 1
    return 0


def _write_page(plan: Plan, name: str) -> None:
    """Write the HTML page, but never over a file that is something else."""
    from kt_core.errors import UsageError
    from kt_core.plan_page.page import MARK, plan_page
    from kt_core.units import human_bytes

    text = plan_page(plan)
    if name == "-":
        print(text, end="")
        return
    path = Path(name)
    try:
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                if file.read(len(MARK)) != MARK.encode():
                    raise UsageError.of(
                        "KT751",
                        f"{name} is there already, and it is no page of kt plan",
                        help="name another file: --html plan.html",
                    )
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError.of(
            "KT751",
            f"cannot write {name}: {error.strerror or error}",
            help="name a file in a folder that you may write to: --html plan.html",
        ) from error
    print(f"wrote {name} ({human_bytes(len(text.encode()))})")
