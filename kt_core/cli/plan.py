"""``kt plan``: what loading would do, without doing it."""

from __future__ import annotations

import argparse
import sys

from kt_core.cli.model_options import add_model_options, model_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_model_options(parser)
    parser.add_argument(
        "--context", type=int, default=4096, metavar="N", help="tokens to size the cache for"
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

        print(why(prepared.model, prepared.rules, plan, args.why))
    elif args.format == "json":
        print(plan.dumps())
    else:
        print(summary(plan))
        if args.modules:
            print()
            for line in module_lines(plan):
                print(line)
    for problem in plan.problems:
        print(problem.render(), file=sys.stderr)
    if plan.errors:
        return exit_code(plan.errors)
    if args.strict and any(p.severity is Severity.WARNING for p in plan.problems):
        return 1
    return 0
