"""Shared fixtures and the marks that ask for hardware or for the real model."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(config, items):
    """Skip what this machine cannot run, by the operator's own probe, and say why."""
    reasons = {"gpu": _no_gpu(), "model": _no_model()}
    for item in items:
        for mark, reason in reasons.items():
            if reason is not None and mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    from kt_core import Accepted
    from kt_core.registry.registry import default_registry

    found = default_registry().kernel("kt_ops_cuda.marlin")
    if found is None:
        return "kt-ops-cuda is not installed"
    result = default_registry().probe(found.spec, "cuda")
    return None if isinstance(result, Accepted) else "; ".join(result.reasons)


def _no_model() -> str | None:
    path = os.environ.get("KT_TEST_MODEL")
    if not path:
        return "KT_TEST_MODEL does not name SmolLM2's GGUF file"
    return None if Path(path).is_file() else f"{path} is not there"


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """Commands set up kt's logger for the whole process; a test must not leave that to the next."""
    logger = logging.getLogger("kt_core")
    before = (logger.propagate, logger.level, list(logger.handlers))
    yield
    logger.propagate, logger.level, logger.handlers = before


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Path of SmolLM2-135M-Instruct (Q4_1); for tests marked ``model``."""
    return os.environ["KT_TEST_MODEL"]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout the tests lie in."""
    return ROOT


@pytest.fixture(scope="session")
def all_distributions():
    """A registry of everything in this checkout, whether or not it is built and installed."""
    file = ROOT / "website" / "build.py"
    spec = importlib.util.spec_from_file_location("website_build", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.all_distributions()
