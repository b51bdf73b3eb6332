"""The product of activations and one stored matrix, computed on a GPU on the bytes of the file."""

from __future__ import annotations

import torch
from kt_core.errors import KernelError
from kt_core.weights import PackedTensor, TensorInfo

from kt_plugin_template.backend import native

MAX_ROWS = 65_535
"""Rows one launch takes: the limit of a grid's second dimension."""


class Matrix:
    """A stored ``(out, in)`` matrix of type Q8_0, its bytes copied to the GPU."""

    def __init__(self, stored: PackedTensor, device: torch.device) -> None:
        self.out, self.width = stored.shape
        self.bytes = torch.from_numpy(stored.data.copy()).to(device)

    @staticmethod
    def resident(info: TensorInfo) -> int:
        """Bytes one such matrix occupies."""
        return info.nbytes

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 ``(n, in)`` to float32 ``(n, out)``, on torch's current stream."""
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.out, device=x.device)
        stream = torch.cuda.current_stream(x.device).cuda_stream
        with torch.cuda.device(x.device):
            for start in range(0, x.shape[0], MAX_ROWS):
                part = x[start : start + MAX_ROWS]
                code = native().kt_plugin_template_linear(
                    *(part.data_ptr(), self.bytes.data_ptr(), y[start:].data_ptr()),
                    *(part.shape[0], self.width, self.out),
                    stream,
                )
                if code:
                    raise KernelError.of("KT592", f"the GPU refused the kernel: CUDA error {code}")
        return y
