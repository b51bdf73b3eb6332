"""The product of activations and one stored matrix, computed in C on the bytes of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from kt_core.weights import PackedTensor, TensorInfo

from kt_plugin_template.backend import native


def bytes_of(stored: PackedTensor) -> Any:
    """Return the address of a stored matrix; keep ``stored`` alive as long as it is used."""
    return native().ffi.from_buffer("uint8_t[]", np.ascontiguousarray(stored.data))


def floats_of(x: torch.Tensor) -> Any:
    """Return the address of a contiguous float32 tensor on the CPU."""
    return native().ffi.cast("float *", x.data_ptr())


class Matrix:
    """A stored ``(out, in)`` matrix of type Q8_0. Its bytes stay where the file is mapped."""

    def __init__(self, stored: PackedTensor, device: torch.device) -> None:
        self.out, self.width = stored.shape
        self._bytes = bytes_of(stored)

    @staticmethod
    def resident(info: TensorInfo) -> int:
        """Bytes one such matrix occupies."""
        return info.nbytes

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 ``(n, in)`` to float32 ``(n, out)``."""
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.out)
        native().lib.kt_plugin_template_linear(
            floats_of(x), self._bytes, floats_of(y), x.shape[0], self.width, self.out
        )
        return y
