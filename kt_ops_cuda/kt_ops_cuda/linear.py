"""The linear kernels: ``kt_ops_cuda.marlin`` and ``kt_ops_cuda.gguf_linear``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from kt_core.operators.kernel import Accuracy, KernelContext, LinearKernel, LinearShape
from kt_core.weights import PackedTensor, TensorInfo
from kt_ops_cuda import ops, refuse
from kt_ops_cuda.layout import packed_bytes, padded
from kt_ops_cuda.packing import Blocks, blocks_of, pack_blocks
from kt_ops_cuda.quantize import Quantised, Report
from kt_ops_cuda.stored import Policy

_LOG = logging.getLogger(__name__)

COMPUTE_DTYPES = (torch.float16, torch.bfloat16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What activations of ``dtype`` are multiplied in: themselves, and float32 as bfloat16."""
    return torch.bfloat16 if dtype == torch.float32 else dtype


def check_activations(name: str, x: torch.Tensor, width: int, device: torch.device) -> None:
    """Refuse what a kernel cannot take, before anything is launched (KT552)."""
    if x.dtype not in (*COMPUTE_DTYPES, torch.float32):
        raise refuse.bad_input(name, f"{x.dtype} activations", "float16, bfloat16 or float32 it is")
    if x.device.type != "cuda" or (device.index is not None and x.device != device):
        raise refuse.bad_input(name, f"activations on {x.device}", f"its weights lie on {device}")
    if x.dim() == 0 or x.shape[-1] != width:
        raise refuse.bad_input(name, f"activations of shape {list(x.shape)}", f"width is {width}")


class MarlinLinear(LinearKernel):
    """Weights packed to 4 to 8 bits, multiplied with fp16 or bf16 activations, summed in float32.

    GGUF types that can be are kept exactly, whatever the options say; floats are quantised to
    ``num_bits``. float32 activations are rounded to bfloat16. ``report`` says what quantising cost.
    """

    graph_safe: ClassVar[bool] = True
    exact_only: ClassVar[bool] = False

    def __init__(self, shape: LinearShape, context: KernelContext) -> None:
        super().__init__(shape, context)
        self.report: Report | None = None
        self._weights: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        self._format = -1

    @classmethod
    def check(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Reasons why the stored types or options cannot be served."""
        policy = Policy.of(context.options, cls.exact_only)
        return [reason for info in weights[:1] for reason in policy.reasons(info.type)]

    @classmethod
    def resident_bytes(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> int:
        """Packed size, padding and bias included."""
        policy = Policy.of(context.options, cls.exact_only)
        fmt = policy.format(weights[0].type) if weights else None
        if fmt is None:
            return sum(info.nbytes for info in weights)
        packed = packed_bytes(fmt, shape.out_features, shape.in_features)
        biases = len(weights) > 1
        return packed + (4 * padded(shape.out_features, 64) if biases else 0)

    @classmethod
    def accuracy(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy:
        """Of types that are kept exactly only activations are rounded, others lose what they lose."""
        policy = Policy.of(context.options, cls.exact_only)
        return policy.accuracy([info.type for info in weights if len(info.shape) > 1])

    def load(self, weight: PackedTensor, bias: torch.Tensor | None) -> None:
        """Bring the weight to the device and pack it there."""
        context, shape = self.context, self.shape
        if tuple(weight.shape) != (shape.out_features, shape.in_features):
            fact = f"shape {list(weight.shape)}, not {[shape.out_features, shape.in_features]}"
            raise refuse.bad_weight(context.name, [fact])
        policy = Policy.of(context.options, self.exact_only)
        if reasons := policy.reasons(weight.type):
            raise refuse.bad_weight(context.name, reasons)
        try:
            blocks, self.report = policy.blocks(weight, context.device)
            self._keep(blocks, bias)
        except torch.OutOfMemoryError as error:
            needed = 8 * shape.out_features * shape.in_features
            raise refuse.out_of_memory(context.name, needed, context.device) from error
        if self.report is not None:
            _LOG.info("%s: %s to %s, %s", context.name, weight.type, blocks.fmt.name, self.report)

    def load_quantised(self, weight: Quantised, bias: torch.Tensor | None) -> None:
        """Take weights that were quantised elsewhere (:mod:`kt_ops_cuda.checkpoints`)."""
        expected = (self.shape.out_features, self.shape.in_features)
        if tuple(weight.q.shape) != expected:
            fact = f"shape {list(weight.q.shape)}, not {list(expected)}"
            raise refuse.bad_weight(self.context.name, [fact])
        self._keep(blocks_of(weight), bias)

    def _keep(self, blocks: Blocks, bias: torch.Tensor | None) -> None:
        device = self.context.device
        self._weights = pack_blocks(blocks).to(device)
        self._format = blocks.fmt.number
        if bias is not None:
            rows = padded(self.shape.out_features, 64)
            self._bias = torch.zeros(rows, dtype=torch.float32, device=device)
            self._bias[: self.shape.out_features] = bias

    def parts(self) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
        """The packed weight, the bias and the format's number; nothing before :meth:`load`."""
        return self._weights, self._bias, self._format

    def share(self, weights: torch.Tensor) -> None:
        """Read ``weights``, a copy of the packed weight that others read too, from now on."""
        self._weights = weights

    def packed_size(self) -> int:
        """Bytes on the device, bias included; 0 before :meth:`load`."""
        return sum(t.nbytes for t in (self._weights, self._bias) if t is not None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`kt_core.operators.kernel.LinearKernel.forward`.

        Raises:
            KernelError: KT552 for activations it cannot take, KT556 before :meth:`load`, KT551 or
                KT555 if the GPU refuses.
        """
        if self._weights is None:
            raise refuse.not_loaded(self.context.name)
        check_activations(self.context.name, x, self.shape.in_features, self.context.device)
        rows = x.reshape(-1, self.shape.in_features).to(compute_dtype(x.dtype))
        y: torch.Tensor = ops.linear(
            rows, self._weights, self._bias, self._format, self.shape.out_features
        )
        return y.to(x.dtype).view(*x.shape[:-1], self.shape.out_features)


class GgufLinear(MarlinLinear):
    """As :class:`MarlinLinear`, for stored types it keeps exactly and no others."""

    exact_only = True
