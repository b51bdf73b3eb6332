"""The pages, and the blocks of code on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- run(?P<needs>: \w+)? -->\n)?^(?P<fence>```+)(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block. ``run``: a comment asks to run it; ``needs`` is ``model`` where one is."""

    page: str
    line: int
    language: str
    text: str
    run: bool
    needs: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            path.relative_to(ROOT).as_posix(),
            text.count("\n", 0, found.start("fence")) + 1,
            found["language"],
            found["text"],
            found[0].startswith("<!-- run"),
            (found["needs"] or "").removeprefix(": "),
        )
        for found in _BLOCK.finditer(text)
    ]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES += sorted(ROOT.glob("kt_ops_*/README.md"))
# The tutorial's blocks build on each other; test_plugin_tutorial carries them out as they stand.
BLOCKS = [b for page in PAGES if page.name != "plugin-tutorial.md" for b in blocks(page)]


def pytest_generate_tests(metafunc):
    """Parametrise by pages with something to run, or by blocks of one language."""
    if "page" in metafunc.fixturenames:
        running = [page for page in PAGES if any(block.run for block in blocks(page))]
        metafunc.parametrize("page", running, ids=lambda page: page.relative_to(ROOT).as_posix())
    for language in ("yaml", "console", "python", "json"):
        if f"{language}_block" in metafunc.fixturenames:
            chosen = [block for block in BLOCKS if block.language == language]
            metafunc.parametrize(f"{language}_block", chosen, ids=str)


@pytest.fixture(scope="session")
def page_blocks():
    """Blocks of a page, in order."""
    return blocks
