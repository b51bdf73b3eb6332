"""What kt-core gives to a test run of a plugin's author: tiny models, the registry, a marker.

Loaded by pytest itself (the entry point ``pytest11``), so it imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

MARKER = (
    "kt_kernel(name, device): skip where the probe of this kernel or operator rejects the device"
)


class TinyFiles:
    """Makes tiny GGUF files, each once per session; calling it returns the path."""

    def __init__(self, folder: Path, experts: int = 0) -> None:
        self._folder = folder
        self._experts = experts
        self._made: dict[str, tuple[Path, Any]] = {}

    def __call__(self, **options: Any) -> Path:
        """Options are those of :func:`kt_core.testing.write_tiny_llama` (``quantization="Q8_0"``)."""
        return self._get(options)[0]

    def reference(self, **options: Any) -> Any:
        """Transformers' own float32 model with the same weights (of the dense file)."""
        return self._get(options)[1]

    def _get(self, options: dict[str, Any]) -> tuple[Path, Any]:
        from kt_core.testing import write_tiny_llama, write_tiny_moe

        key = repr(sorted(options.items()))
        if key not in self._made:
            path = self._folder / f"tiny-{len(self._made)}.gguf"
            if self._experts:
                model = write_tiny_moe(path, experts=self._experts, **options)
            else:
                model = write_tiny_llama(path, **options)
            self._made[key] = path, model
        return self._made[key]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``kt_kernel`` where the probe says no, with its reasons."""
    for mark in item.iter_markers("kt_kernel"):
        name, device = mark.args
        _skip(name, device)


def _skip(name: str, device: str) -> None:
    from kt_core.registry.registry import default_registry
    from kt_core.testing.cases import skip_unless_accepted

    registry = default_registry()
    found = registry.kernel(name) or registry.operator(name)
    if found is None:
        pytest.fail(registry.unknown(name, "kernel").render(), pytrace=False)
    skip_unless_accepted(found.spec, device, registry)


@pytest.fixture(scope="session")
def kt_registry() -> Registry:
    """The registry of this process: the core's plugin and every installed one."""
    from kt_core.registry.registry import default_registry

    return default_registry()


@pytest.fixture(scope="session")
def kt_tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    """Tiny dense Llamas as GGUF files, made when called: options as of ``write_tiny_llama``."""
    return TinyFiles(tmp_path_factory.mktemp("kt-tiny-llama"))


@pytest.fixture(scope="session")
def kt_tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    """Tiny Mixtrals with four experts; ``quantization`` is that of the experts."""
    return TinyFiles(tmp_path_factory.mktemp("kt-tiny-moe"), experts=4)
