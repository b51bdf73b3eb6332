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
from kt_ops_cpu.matrices import (
    bias_pointer,
    check_activations,
    matrix,
    parts,
    reasons,
    row_major,
    set_rows,
)
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
        struct = matrix(weight, shape, self.context.name)
        kept, pointer = bias_pointer(bias, shape[:1], self.context.name)
        self._kept = (weight, kept)
        ffi = native().ffi
        self._call_type = ffi.typeof("struct kt_cpu_linear *")
        # Every call begins as a copy of this: calls may come from several threads.
        self._template = ffi.new(self._call_type, {"weight": struct[0], "bias": pointer})
        self._split = split_from(self.context.options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`kt_core.operators.kernel.LinearKernel.forward`.

        Raises:
            KernelError: KT501 before :meth:`load`, KT505 for unfit activations, KT508 to KT510.
        """
        name = self.context.name
        if not hasattr(self, "_template"):
            raise KernelError.of("KT501", f"{name} was given no weights")
        check_activations(x, self.shape.in_features, name)
        flat = row_major(x if x.dim() == 2 else x.reshape(-1, self.shape.in_features))
        tokens = flat.size(0)
        y = flat.new_empty((tokens, self.shape.out_features))
        module = native()
        for some_x, some_y in parts(tokens, TOKENS_PER_CALL, flat, y):
            call = module.ffi.new(self._call_type, self._template[0])
            set_rows(call.x, some_x)
            set_rows(call.y, some_y)
            call.tokens = some_x.size(0)
            call.split = self._split(tokens)
            check(module.lib.kt_cpu_linear(call), name)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.shape.out_features)
