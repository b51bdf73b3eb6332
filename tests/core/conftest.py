"""Fixtures shared by the tests of the core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def child():
    """Run Python code or a ``kt`` command in a process of its own, with folders on its path."""

    def run(*arguments: str, path=(), timeout: float = 60, **environ: str):
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("KT_", "CPUINFER_", "CUDA_VISIBLE", "PYTHONDONTWRITE"))
        }
        search = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]).strip(":")
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**inherited, "PYTHONPATH": search, **environ},
        )

    return run


@pytest.fixture(scope="session")
def kt(child):
    """Run ``kt`` in a process of its own."""

    def run(*arguments: str, **options):
        return child("-m", "kt_core.cli", *arguments, **options)

    return run
