"""Linear layers that read the same activations, run as one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kt_core.operators.linear import Linear
from kt_core.operators.operator import Phase
from kt_ops_cuda import ops
from kt_ops_cuda.layout import CHUNK_ROWS
from kt_ops_cuda.linear import MarlinLinear


class Merged:
    """Neighbouring linears on one packed tensor, which each of them keeps a view of."""

    def __init__(self, kernels: Sequence[MarlinLinear]) -> None:
        self._sizes = [kernel.shape.out_features for kernel in kernels]
        self._format = kernels[0].parts()[2]
        weights = [part for kernel in kernels if (part := kernel.parts()[0]) is not None]
        self._weights = torch.cat(weights)
        views = torch.split(self._weights, [part.numel() for part in weights])
        for kernel, view in zip(kernels, views, strict=True):
            kernel.share(view)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map ``x`` ``(…, in_features)`` to every layer's result, as views of one tensor."""
        rows = x.reshape(-1, x.shape[-1])
        y = ops.linear(rows, self._weights, None, self._format, sum(self._sizes))
        return torch.split(y.view(*x.shape[:-1], -1), self._sizes, dim=-1)


class Together:
    """What to call in place of several linears: merged where kernel and format are the same."""

    def __init__(self, layers: Sequence[Any]) -> None:
        groups: list[list[Any]] = []
        for layer in layers:
            if groups and _alike(groups[-1][-1], layer):
                groups[-1].append(layer)
            else:
                groups.append([layer])
        self._calls: list[Any] = [
            group[0] if len(group) == 1 else Merged([_kernel(layer) for layer in group])
            for group in groups
        ]

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every layer's result, in order."""
        results: list[torch.Tensor] = []
        for call in self._calls:
            y = call(x)
            results.extend(y if isinstance(call, Merged) else (y,))
        return results


def _kernel(layer: Any) -> Any:
    return layer.kernels[Phase.DECODE] if type(layer) is Linear else None


def _alike(a: Any, b: Any) -> bool:
    """Whether the packed rows of ``b`` may stand behind those of ``a``."""
    seen = []
    for layer in (a, b):
        kernel = _kernel(layer)
        if not isinstance(kernel, MarlinLinear):
            return False
        weights, bias, number = kernel.parts()
        if weights is None or bias is not None or kernel.shape.out_features % CHUNK_ROWS:
            return False
        seen.append((number, kernel.shape.in_features, weights.device, layer.context.out_device))
    return seen[0] == seen[1]
