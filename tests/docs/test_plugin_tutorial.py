"""The plugin tutorial, carried out: its files are written, its commands run, its output compared.

The test reads docs/plugin-tutorial.md itself. Only the block marked ``set-up``, which needs a network, is
replaced: by a fresh environment that sees what this one has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugin-tutorial.md"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[\w-]+) -->\n|^`(?P<path>[^`\n]+)`:\n\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """A file to write (``path``), or one command with the lines it must print."""

    line: int
    path: str = ""
    text: str = ""
    command: str = ""
    prints: tuple[str, ...] = ()


def steps(text: str) -> list[Step]:
    found = []
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("text")) + 1
        if block["mark"] == "set-up":
            continue
        if block["path"]:
            found.append(Step(line, path=block["path"], text=block["text"]))
            continue
        assert block["language"] == "console", f"line {line}: neither a file nor commands"
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(Step(line, command=command, prints=tuple(output.splitlines())))
    return found


def agrees(shown: tuple[str, ...], printed: str) -> bool:
    """Whether the lines come in this order; ``…`` stands for anything, also for whole lines."""
    pattern = r"\n(?:.*\n)*?".join(
        ".*".join(re.escape(part) for part in line.split("…")) for line in shown if line != "…"
    )
    return re.search(rf"^{pattern}$", printed.replace("\r", ""), re.MULTILINE) is not None


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder with a virtual environment whose ``pip`` cannot reach a network."""
    folder = tmp_path_factory.mktemp("tutorial")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in shared)
    )
    tools = folder / "venv" / "bin"
    for name, module in (("pip", "pip"), ("pytest", "pytest"), ("kt", "kt_core.cli")):
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec "{tools}/python" -m {module} "$@"\n')
        script.chmod(0o755)
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("KT_", "PYTEST_", "PIP_"))
    }
    return folder, {
        **inherited,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONSAFEPATH": "1",
        "COLUMNS": "200",
        # An editable kt-core makes pytest warn; an author's installation does not.
        "PYTEST_ADDOPTS": "-W ignore::pytest.PytestAssertRewriteWarning",
    }


@pytest.mark.slow
def test_every_command_does_what_the_page_says(environment):
    pytest.importorskip("mesonpy", reason="meson-python builds the plugins")
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler")
    folder, environ = environment
    todo = steps(PAGE.read_text(encoding="utf-8"))
    assert len([step for step in todo if step.command]) > 20
    for step in todo:
        if step.path:
            target = folder / step.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text)
            continue
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        where = f"{PAGE.name}:{step.line}: {step.command}\n{done.stdout}"
        expected = 3 if step.command.startswith("KT_PLUGINS=-") else 0
        assert done.returncode in (0, expected), where
        if step.prints:
            assert agrees(step.prints, done.stdout), where


def test_output_is_compared():
    """The comparison above can fail."""
    assert agrees(("a …", "…", "c"), "a 1\nb\nc\n")
    assert not agrees(("a …", "c"), "c\na 1\n")
    assert not agrees(("1 passed",), "2 passed")
