"""What git tracks is what a wheel holds: nothing forgotten in meson.build, no stray file."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from kt_core.manual.pages import ELSEWHERE

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {
    "kt_core": (
        ("kt_core", "kt_core"),
        ("schemas", "kt_core/schemas"),
        ("rules", "kt_core/rules"),
        ("docs", "kt_core/docs"),
        *((path, f"kt_core/docs/{name}.md") for name, path in ELSEWHERE.items()),
    ),
    **{
        path.parent.name: ((f"{path.parent.name}/{path.parent.name}", path.parent.name),)
        for path in sorted(ROOT.glob("kt_ops_*/pyproject.toml"))
    },
}


def wheel(name: str) -> Path:
    found = sorted((ROOT / "dist").glob(f"{name}-*.whl"))
    if not found:
        pytest.skip(f"no wheel of {name} in dist/ (make wheels)")
    return found[-1]


def tracked(folder: str) -> list[str]:
    try:
        output = subprocess.run(
            ["git", "ls-files", "--", folder], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return output.splitlines()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wheel_holds_exactly_what_git_tracks(name):
    expected = {
        packaged + path.removeprefix(folder)
        for folder, packaged in DISTRIBUTIONS[name]
        for path in tracked(folder)
        if not path.endswith("meson.build")
    }
    names = zipfile.ZipFile(wheel(name)).namelist()
    actual = {
        entry
        for entry in names
        if ".dist-info/" not in entry and not entry.endswith((".so", ".so.1", ".pyd", ".dylib"))
    }
    assert actual == expected


def test_the_core_wheel_is_pure():
    assert wheel("kt_core").name.endswith("-py3-none-any.whl")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wheel_carries_its_licence_and_entry_points(name):
    archive = zipfile.ZipFile(wheel(name))
    info = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    folder = info.rpartition("/")[0]
    metadata = archive.read(info).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert any("LICENSE" in entry for entry in archive.namelist() if entry.startswith(folder))
    assert "[kt_core.plugins]" in archive.read(f"{folder}/entry_points.txt").decode()
