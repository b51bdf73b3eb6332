"""The JSON schema of rule files, for editors and other tools."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

NAME = "rules.v1.schema.json"


def schema_text() -> str:
    """Return the schema (draft 2020-12) as JSON text."""
    file = resources.files("kt_core").joinpath("schemas", NAME)
    if not file.is_file():
        # A checkout that was never installed: the folder lies beside the package.
        file = Path(__file__).resolve().parents[2] / "schemas" / NAME
    return file.read_text(encoding="utf-8")
