"""``kt_ops_cpu.linear``: a linear layer computed on its packed weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import Accuracy, KernelContext, LinearKernel
from kt_core.weights import PackedTensor, TensorInfo
from kt_ops_cpu.library import check, native
from kt_ops_cpu.limits import measure_limits
from kt_ops_cpu.matrices import bias_pointer, check_activations, matrix, reasons, row_major, rows
from kt_ops_cpu.options import always_split, split_from
from kt_ops_cpu.pool import ensure_pool
from kt_ops_cpu.rounding import rounding

TOKENS_PER_CALL = 4096
"""Most tokens in one native call: between calls Python sees signals such as Ctrl-C."""


class CpuLinear(LinearKernel):
    """Computes ``x @ weight.T + bias`` on the blocks as they are stored.

    Quantised weights are multiplied exactly, as integers; the activations are first rounded to 8
    bits, with one scale per 256 values (K-quants, IQ types) or per 32 (the other block types). Each
    value is then off by at most 1/254 of the largest in its block. The option
    ``activation_bits: 16`` adds what that rounding left over as a second term, for twice the
    arithmetic. F32 and F16 weights are multiplied in float32, BF16 weights too, with activations
    rounded to bfloat16, or to two terms of it in 16 bits. A row of ``x`` that holds a NaN or
    an infinity gives a row of NaN or infinities and leaves the others alone.
    """

    own_threads = True

    @classmethod
    def check(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Sequence[str]:
        """Return the reasons why this layer cannot be served."""
        return reasons(weights, context.dtype)

    @classmethod
    def accuracy(
        cls, shape: Any, weights: Sequence[TensorInfo], context: KernelContext
    ) -> Accuracy | None:
        """Only the rounding of activations costs anything; see the class."""
        return rounding(weights, split=always_split(context.options))

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """Measured with the pool's own threads and instructions."""
        return measure_limits().by_name()

    def load(self, weight: PackedTensor, bias: torch.Tensor | None) -> None:
        """Keep a view of ``weight``; nothing of it is copied.

        Raises:
            KernelError: KT502, KT513; KT507 and KT514 from the option ``threads``.
        """
        ensure_pool(self.context.options.get("threads"))
        shape = (self.shape.out_features, self.shape.in_features)
        self._matrix = matrix(weight, shape, self.context.name)
        self._bias, self._bias_pointer = bias_pointer(bias, shape[:1], self.context.name)
        self._weight = weight
        self._split = split_from(self.context.options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`kt_core.operators.kernel.LinearKernel.forward`.

        Raises:
            KernelError: KT501 before :meth:`load`, KT505 for unfit activations, KT508 to KT510.
        """
        name = self.context.name
        if not hasattr(self, "_matrix"):
            raise KernelError.of("KT501", f"{name} was given no weights")
        check_activations(x, self.shape.in_features, name)
        flat = row_major(x.reshape(-1, self.shape.in_features))
        y = torch.empty((flat.shape[0], self.shape.out_features), dtype=x.dtype)
        module = native()
        for first in range(0, flat.shape[0], TOKENS_PER_CALL):
            part = flat[first : first + TOKENS_PER_CALL]
            call = module.ffi.new(
                "struct kt_cpu_linear *",
                {
                    "weight": self._matrix[0],
                    "bias": self._bias_pointer,
                    "x": rows(part),
                    "y": rows(y[first : first + TOKENS_PER_CALL]),
                    "tokens": part.shape[0],
                    "split": self._split(flat.shape[0]),
                },
            )
            check(module.lib.kt_cpu_linear(call), name)
        return y.view(*x.shape[:-1], self.shape.out_features)
