"""The product of activations and one stored matrix: replace this by something faster."""

from __future__ import annotations

import torch
from kt_core.weights import PackedTensor, TensorInfo


class Matrix:
    """A stored ``(out, in)`` matrix, dequantised once to float32 on ``device``."""

    def __init__(self, stored: PackedTensor, device: torch.device) -> None:
        self.values = stored.to_torch(torch.float32, device)

    @staticmethod
    def resident(info: TensorInfo) -> int:
        """Bytes one such matrix occupies."""
        return info.numel * 4

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 ``(n, in)`` to float32 ``(n, out)``."""
        return x @ self.values.T
