"""Shared by the tests of kt-ops-cuda: they are skipped as a whole where it is not installed."""

from __future__ import annotations

from importlib import metadata

import pytest


def _installed() -> bool:
    # Importing proves nothing: in the checkout's root a bare folder is an empty namespace package.
    try:
        metadata.distribution("kt-ops-cuda")
    except metadata.PackageNotFoundError:
        return False
    return True


collect_ignore_glob = [] if _installed() else ["test_*.py"]


@pytest.fixture
def cuda():
    """The GPU; for tests marked ``gpu``."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())
