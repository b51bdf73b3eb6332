"""KT7xx: commands and arguments."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT700",
        "The command line is wrong",
        "An option or argument of a command is missing, unknown or has a value that it cannot "
        "take. The message names it; the command's own --help lists everything it understands.",
        "KT700 kt plugins: unrecognized arguments: --fromat\n"
        "  help: did you mean --format? kt plugins --help lists all options",
    ),
    Code(
        "KT701",
        "There is no such command",
        "The first word after kt must be one of its commands, which kt --help lists.",
        'KT701 "valdate" is not a command of kt\n'
        "  commands: validate, explain, plugins, doctor, plan, inspect, chat, bench\n"
        "  help: did you mean kt validate?",
    ),
    Code(
        "KT702",
        "There is no such error code",
        "kt explain takes a code as kt prints it, such as KT210; the letters may be lower case "
        "or left out. Without an argument it lists all codes.",
        'KT702 "KT21" is not an error code of kt\n'
        "  help: did you mean KT210? kt explain lists all codes",
    ),
    Code(
        "KT703",
        "There is no such plugin",
        "kt plugins NAME takes the name of an installed plugin or of its distribution.",
        'KT703 no plugin "toyy" is installed\n'
        "  installed: kt_core, toy\n"
        '  help: did you mean "toy"?',
    ),
    Code(
        "KT790",
        "A fault in kt itself",
        "Something happened that kt's authors did not foresee. It is a bug, not your mistake. "
        "Run the command again with KT_DEBUG=1 in the environment, which shows where it "
        "happened, and report that together with what kt doctor prints.",
        "KT790 kt failed unexpectedly: IndexError: list index out of range\n"
        "  at /venv/lib/python3.11/site-packages/kt_core/plan/build.py:120\n"
        "  help: KT_DEBUG=1 shows the whole traceback; please report it",
    ),
)
