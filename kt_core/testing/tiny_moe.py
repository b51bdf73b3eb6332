"""A tiny Mixture-of-Experts model as a GGUF file, with the dense model that it must equal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from kt_core.testing.moe_from_dense import moe_from_dense
from kt_core.testing.tiny import write_tiny_llama


def write_tiny_moe(
    path: str | Path, *, experts: int = 4, quantization: str = "F32", **options: Any
) -> Any:
    """Write a random Mixtral to ``path`` and return the dense float32 model with the same answers.

    ``quantization`` is the experts' stored type, which costs that equality what it rounds;
    ``options`` are those of :func:`kt_core.testing.write_tiny_llama`. Experts are 64 wide.
    """
    options = {"intermediate": 64 * experts, **options}
    with tempfile.TemporaryDirectory() as folder:
        dense = Path(folder) / "dense.gguf"
        model = write_tiny_llama(dense, **options)
        moe_from_dense(dense, path, experts=experts, quantization=quantization)
    return model
