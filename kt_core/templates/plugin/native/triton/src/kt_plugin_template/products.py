"""The product of activations and one stored matrix, computed on a GPU in Triton."""

from __future__ import annotations

import numpy as np
import torch
from kt_core.weights import PackedTensor, TensorInfo

_ROWS, _COLUMNS, _VALUES = 16, 64, 32


class Matrix:
    """A stored ``(out, in)`` matrix of type Q8_0, its quants and scales apart on the GPU."""

    def __init__(self, stored: PackedTensor, device: torch.device) -> None:
        self.out, self.width = stored.shape
        blocks = np.ascontiguousarray(stored.data).reshape(self.out, self.width // _VALUES, -1)
        quants = blocks[:, :, 2:].view(np.int8).reshape(self.out, self.width)
        scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]
        self.quants = torch.from_numpy(quants.copy()).to(device)
        self.scales = torch.from_numpy(scales.copy()).to(device)

    @staticmethod
    def resident(info: TensorInfo) -> int:
        """Bytes one such matrix occupies."""
        return info.nbytes

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 ``(n, in)`` to float32 ``(n, out)``, on torch's current stream."""
        from kt_plugin_template.tile import multiply

        x = x.contiguous()
        y = torch.empty(x.shape[0], self.out, device=x.device)
        if y.numel():
            grid = (-(-x.shape[0] // _ROWS), -(-self.out // _COLUMNS))
            with torch.cuda.device(x.device):
                multiply[grid](
                    *(x, self.quants, self.scales, y),
                    *(x.shape[0], self.out, self.width),
                    rows=_ROWS,
                    columns=_COLUMNS,
                    values=_VALUES,
                )
        return y
