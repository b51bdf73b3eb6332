"""Show the documentation, offline: a page, or the section about an error code, command or operator.

Without a topic it lists all of them. Pages about operators, commands and error codes are made on the
spot from what is installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kt_core.cli import exit_codes
from kt_core.cli.output import printable, table, write

if TYPE_CHECKING:
    from kt_core.manual.names import Answer
    from kt_core.manual.pages import Page

SITE_VARIABLE = "KT_DOCS_SITE"
"""A folder with the built site, for ``--browser``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt docs``."""
    parser.add_argument(
        "topic",
        nargs="?",
        metavar="TOPIC",
        help="a page (quick-start), an error code (KT210), a command (plan), an operator or kernel",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the page as it is written, unwrapped"
    )
    parser.add_argument(
        "--browser",
        action="store_true",
        help=f"open the built site: site/ of a checkout (make docs), or what {SITE_VARIABLE} names",
    )


def run(args: argparse.Namespace) -> int:
    """Show a topic, or list all."""
    from kt_core.manual.names import look_up
    from kt_core.manual.pages import all_pages
    from kt_core.registry.registry import default_registry

    pages = all_pages(default_registry())
    answer = look_up(args.topic, pages) if args.topic is not None else None
    if args.browser:
        return _browse(answer)
    if answer is None:
        write(_listing(pages))
    elif args.markdown:
        write(answer.text.rstrip())
    else:
        _show(_text(answer, pages))
    return exit_codes.OK


def _listing(pages: Mapping[str, Page]) -> str:
    from kt_core.manual.pages import navigation
    from kt_core.manual.terminal import inline

    blocks = []
    for heading, names in navigation(pages).items():
        rows = [(name, inline(pages[name].title)) for name in names]
        blocks.append(f"{heading}\n{table(rows, indent=2)}")
    blocks.append(
        "kt docs TOPIC shows one; so does an error code, a command or an operator's name."
    )
    return "\n\n".join(blocks)


def _text(answer: Answer, pages: Mapping[str, Page]) -> str:
    import shutil
    import sys

    from kt_core.manual.names import mentions
    from kt_core.manual.terminal import to_terminal

    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = min(shutil.get_terminal_size().columns, 100)
    text = to_terminal(answer.text, width, styled=styled)
    if answer.code is not None:
        related = list(mentions(answer.code.id, pages))
        text += f"\nspoken of in: {', '.join(related)}\n" if related else ""
    return text


def _show(text: str) -> None:
    """Through a pager, when a person reads; as it is, when a program does."""
    import shlex
    import shutil
    import subprocess
    import sys

    # What is bold stays bold: headings are ours, and everything else is made harmless.
    lines = [
        f"\x1b[1m{printable(line[4:-4])}\x1b[0m" if line.startswith("\x1b[1m") else printable(line)
        for line in text.splitlines()
    ]
    text = "\n".join(lines)
    pager = shlex.split(os.environ.get("PAGER", "less"))
    if sys.stdout.isatty() and pager and shutil.which(pager[0]):
        environment = {"LESS": "FRX", **os.environ}
        subprocess.run(pager, input=f"{text}\n", text=True, check=False, env=environment)
        return
    print(text)


def _browse(answer: Answer | None) -> int:
    import webbrowser

    from kt_core.errors import UsageError

    folder = _site()
    if folder is None:
        raise UsageError.of(
            "KT752",
            "there is no built site of the documentation here",
            facts=["kt docs TOPIC shows every page in the terminal"],
            help=f"in a checkout: make docs; elsewhere: {SITE_VARIABLE}=FOLDER kt docs --browser",
        )
    name = "index" if answer is None else answer.page.name
    address = (folder / f"{name}.html").resolve().as_uri()
    if answer is not None and answer.code is not None:
        address += f"#{answer.code.id.lower()}"
    write(address)
    webbrowser.open(address)
    return exit_codes.OK


def _site() -> Path | None:
    """The folder of the built site, if there is one."""
    named = os.environ.get(SITE_VARIABLE)
    candidates = [Path(named)] if named else [Path(__file__).resolve().parents[2] / "site"]
    return next((path for path in candidates if (path / "index.html").is_file()), None)
