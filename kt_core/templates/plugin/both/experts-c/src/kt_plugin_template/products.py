"""Addresses of what C computes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from kt_core.weights import PackedTensor

from kt_plugin_template.backend import native


class Addresses:
    """A C array of the addresses of stored matrices, which stay where the file is mapped."""

    def __init__(self, tensors: Sequence[PackedTensor]) -> None:
        ffi = native().ffi
        # from_buffer keeps its array alive, and this list keeps what from_buffer returned.
        self._kept = [
            ffi.from_buffer("uint8_t[]", np.ascontiguousarray(tensor.data)) for tensor in tensors
        ]
        self.array: Any = ffi.new("uint8_t *[]", self._kept)


def pointer(kind: str, tensor: torch.Tensor) -> Any:
    """Return the address of a contiguous tensor on the CPU as ``kind`` (``"float *"``)."""
    return native().ffi.cast(kind, tensor.data_ptr())
