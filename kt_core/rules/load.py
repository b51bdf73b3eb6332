"""Rule files in, checked rule sets or all their problems out."""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kt_core.errors import Location, Problem, RuleError, Severity
from kt_core.rules.draft import Document
from kt_core.rules.limits import MAX_BYTES
from kt_core.rules.lint_match import lint_match
from kt_core.rules.lint_order import lint_order
from kt_core.rules.lint_replace import lint_replace
from kt_core.rules.lint_upstream import lint_old_paths, lint_routers
from kt_core.rules.model import Rule, RuleSet
from kt_core.rules.problems import Problems
from kt_core.rules.source import read_tree
from kt_core.rules.structure import read_document

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

STDIN = "-"
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Checked:
    """A rule file after checking. ``ruleset`` is ``None`` if any problem is an error."""

    ruleset: RuleSet | None
    problems: tuple[Problem, ...]


def load_rules(path: str | os.PathLike[str], registry: Registry | None = None) -> RuleSet:
    """Read and check a rule file; ``-`` is standard input.

    Raises:
        RuleError: with every error of the file (KT1xx; KT2xx for what is not registered).
    """
    checked = check_file(path, registry)
    if checked.ruleset is None:
        raise RuleError(p for p in checked.problems if p.severity is Severity.ERROR)
    return checked.ruleset


def check_file(path: str | os.PathLike[str], registry: Registry | None = None) -> Checked:
    """Read and check a rule file; what is wrong with it is returned, not raised."""
    name = os.fspath(path)
    shown = "<stdin>" if name == STDIN else name
    try:
        data = read_bytes(name)
    except RuleError as error:
        return Checked(None, error.problems)
    return check_text(data, shown, registry)


def check_text(
    text: str | bytes,
    path: str = "<string>",
    registry: Registry | None = None,
    *,
    libyaml: bool | None = None,
) -> Checked:
    """Check the text of a rule file. ``path`` is what messages call it; nothing is read from there.

    ``registry`` defaults to that of this process. ``libyaml`` chooses PyYAML's parser, for tests.
    """
    problems = Problems(path)
    root = read_tree(text, problems, libyaml=libyaml)
    if root is None and not problems.failed:
        problems.add(
            "KT114",
            "the file has no rules",
            Location(path),
            help='begin with "- match:"',
        )
    document = read_document(root, problems)
    if registry is None:
        from kt_core.registry.registry import default_registry

        registry = default_registry()
    continued = False
    for draft in document.rules:
        lint_match(draft, problems)
        lint_replace(draft, registry, problems, after_continue=continued)
        continued = continued or draft.continue_
    lint_order(document.rules, problems)
    lint_routers(document.rules, problems)
    lint_old_paths(document.rules, problems)
    found = problems.all()
    return Checked(None if problems.failed else _ruleset(document, path), found)


def _ruleset(document: Document, path: str) -> RuleSet:
    rules = tuple(
        Rule(
            draft.index,
            draft.name,
            draft.match_class,
            draft.replace_class or "",
            draft.kwargs or {},
            draft.recursive,
            draft.continue_,
            draft.places,
        )
        for draft in document.rules
    )
    return RuleSet(
        path, rules, document.version, document.architectures, document.description, document.places
    )


def read_bytes(name: str) -> bytes:
    """Return the bytes of a regular file, or of standard input for ``-``, at most the cap + 1.

    Raises:
        RuleError: KT101 if there is nothing that can be read.
    """
    if name == STDIN:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        handle = os.open(
            name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        folder = stat.S_ISDIR(mode)
        raise RuleError(
            Problem(
                "KT101",
                f"this is {'a folder' if folder else 'a device or pipe'}, not a rule file",
                Location(name),
                help="name a file in it" if folder else "use - to read standard input",
            )
        )
    with os.fdopen(handle, "rb") as file:
        try:
            return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError | ValueError) -> RuleError:
    help_ = None
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.ENOENT:
            help_ = _near_file(name)
    else:
        reason = "the path holds a NUL byte"
    message = f"cannot read the rule file: {reason}"
    return RuleError(Problem("KT101", message, Location(name.replace("\0", "\\0")), help=help_))


def _near_file(name: str) -> str | None:
    from kt_core.rules.suggest import did_you_mean

    folder, base = os.path.split(name)
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry, _ in zip(entries, range(1000), strict=False)]
    except OSError:
        return f"there is no folder {folder}" if folder else None
    near = did_you_mean(base, [n for n in names if n.endswith(SUFFIXES)])
    return f"did you mean {os.path.join(folder, near)}?" if near else None
