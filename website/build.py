"""Build the documentation site: python website/build.py FOLDER.

The pages are those that ``kt docs`` shows: the ones in ``docs/``, and the ones made from the program.
Sphinx gets them side by side in a temporary folder. A warning ends the build.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from kt_core.manual.pages import Page, all_pages, navigation
from kt_core.registry.registry import Registry

ROOT = Path(__file__).resolve().parents[1]


@cache
def all_distributions() -> Registry:
    """A registry of every distribution in this checkout, whether or not it is built here.

    Plugins register data only, so their modules can be read without the compiled parts.
    """
    modules = [importlib.import_module("kt_core.operators.plugin")]
    for file in sorted(ROOT.glob("kt_ops_*/kt_ops_*/plugin.py")):
        package = file.parent.name
        try:
            modules.append(importlib.import_module(f"{package}.plugin"))
        except ModuleNotFoundError:
            sys.modules.pop(package, None)
            sys.path.append(str(file.parent.parent))
            modules.append(importlib.import_module(f"{package}.plugin"))
    return Registry.of(*modules, environ={})


def write_sources(folder: Path) -> None:
    """Write every page, the pictures and the table of contents."""
    pages = all_pages(all_distributions())
    for page in pages.values():
        (folder / f"{page.name}.md").write_text(page.text, encoding="utf-8")
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.write(_contents(pages))
    shutil.copytree(ROOT / "docs" / "images", folder / "images")


def _contents(pages: dict[str, Page]) -> str:
    trees = [
        "\n".join(
            (
                f"```{{toctree}}\n:caption: {heading}\n:hidden:\n",
                *(n for n in names if n != "index"),
            )
        )
        for heading, names in navigation(pages).items()
    ]
    return "\n" + "".join(f"\n{tree}\n```\n" for tree in trees)


def main() -> int:
    """Build into the folder named on the command line, or site/."""
    from sphinx.cmd.build import main as sphinx

    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder))
        return sphinx(
            ["-q", "-W", "--keep-going", "-n", "-c", str(ROOT / "website"), folder, str(target)]
        )


if __name__ == "__main__":
    sys.exit(main())
