"""The pages: where each comes from, in which order they are read, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from kt_core.manual import commands, references

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "Start": ("index", "quick-start"),
    "Guides": (
        "rule-files",
        "plans",
        "verify",
        "editors",
        "migration",
        "upstream-rules",
        "performance",
        "troubleshooting",
    ),
    "Extending kt": ("plugin-tutorial", "plugin-api", "architecture", "contributing"),
    "Reference": ("rule-reference", "operators", "commands", "errors", "environment"),
    "Distributions": ("kt-ops-cpu", "kt-ops-cuda", "kt-ops-amd-blis", "measurements", "changelog"),
}
"""Headings of the navigation, with the pages below each. A page that is not named comes last."""

REST = "More"

ELSEWHERE: Mapping[str, str] = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "measurements": "benchmarks/README.md",
    "kt-ops-amd-blis": "kt_ops_amd_blis/README.md",
    "kt-ops-cpu": "kt_ops_cpu/README.md",
    "kt-ops-cuda": "kt_ops_cuda/README.md",
}
"""Pages that lie outside ``docs/`` in a checkout. The wheel has them beside the others."""

_HEADING = re.compile(r"^(#{1,6}) +(.+?)$")
_INCLUDE = re.compile(r"^<!-- include: ([\w-]+): (.+) -->$", re.MULTILINE)
_FENCE = re.compile(r"^ *(```+|~~~+)")


@dataclass(frozen=True)
class Page:
    """One page of Markdown. ``name`` is what ``kt docs`` calls it, and its file name."""

    name: str
    text: str
    generated: bool = False

    @property
    def title(self) -> str:
        """Its first heading."""
        return next((section.title for section in self.sections()), self.name)

    @property
    def summary(self) -> str:
        """The first sentence below the title."""
        for block in self.text.split("\n\n")[1:]:
            if block.strip() and not block.lstrip().startswith(("#", "<!--", "!", "```", "|")):
                return re.split(r"(?<=[.:])\s", " ".join(block.split()), maxsplit=1)[0]
        return ""

    def sections(self) -> Iterator[Section]:
        """Every heading, each with the text down to the next one of its level or above."""
        lines = self.text.splitlines()
        heads = list(_headings(lines))
        for index, (line, level, title) in enumerate(heads):
            later = (at for at, other, _ in heads[index + 1 :] if other <= level)
            yield Section(title, level, "\n".join(lines[line : next(later, len(lines))]))


@dataclass(frozen=True)
class Section:
    """A heading and what is below it. ``level`` counts from 1, the page's title."""

    title: str
    level: int
    text: str


def _headings(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    fence = ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark is not None and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        found = None if fence else _HEADING.match(line)
        if found is not None:
            yield number, len(found[1]), found[2].replace("`", "")


def written_pages() -> dict[str, Page]:
    """The pages that people write, by name; what one includes from another is in place."""
    found = {
        file.name.removesuffix(".md"): file
        for file in _folder().iterdir()
        if file.name.endswith(".md")
    }
    root = Path(__file__).resolve().parents[2]
    found |= {
        name: root / path
        for name, path in ELSEWHERE.items()
        if name not in found and (root / path).is_file()
    }
    pages = {name: Page(name, found[name].read_text(encoding="utf-8")) for name in sorted(found)}
    return {name: _complete(page, pages) for name, page in pages.items()}


def _complete(page: Page, pages: Mapping[str, Page]) -> Page:
    """Put sections of other pages where ``<!-- include: PAGE: TITLE -->`` stands.

    Raises:
        ValueError: there is no such section.
    """

    def text(mark: re.Match[str]) -> str:
        for section in pages[mark[1]].sections() if mark[1] in pages else ():
            if section.title == mark[2]:
                return section.text.partition("\n")[2].strip("\n")
        raise ValueError(f"{page.name} includes what is not there: {mark[0]}")

    return Page(page.name, _INCLUDE.sub(text, page.text))


@cache
def _folder() -> Traversable:
    folder = resources.files("kt_core").joinpath("docs")
    if not folder.is_dir():
        # A checkout that was never installed: the folder lies beside the package.
        return Path(__file__).resolve().parents[2] / "docs"
    return folder


def generated_pages(registry: Registry) -> dict[str, Page]:
    """The pages made from the program itself, by name."""
    makers: Mapping[str, Callable[[], str]] = {
        "rule-reference": references.rule_reference,
        "operators": lambda: references.operator_reference(registry),
        "commands": lambda: commands.command_reference(registry),
        "errors": references.error_reference,
    }
    return {name: Page(name, make(), generated=True) for name, make in makers.items()}


def all_pages(registry: Registry) -> dict[str, Page]:
    """Every page, in the order of the navigation."""
    found = {**written_pages(), **generated_pages(registry)}
    return {name: found[name] for names in navigation(found).values() for name in names}


def navigation(pages: Mapping[str, Page]) -> dict[str, list[str]]:
    """The headings of the navigation and the names of the pages that are there."""
    tree = {
        heading: [name for name in names if name in pages] for heading, names in NAVIGATION.items()
    }
    placed = {name for names in NAVIGATION.values() for name in names}
    tree[REST] = [name for name in pages if name not in placed]
    return {heading: names for heading, names in tree.items() if names}
