"""``kt_core.DecoderModel``: the decoder stack, with layer-wise prefill.

A GPU reads a long prompt many times faster than a CPU, but cannot hold the experts of all layers. It need
not: a prompt passes the layers one after the other, so it is enough to have the prefill kernels of one layer
there, for as long as the whole prompt is in that layer. What is loaded for it is let go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from kt_core.models.hf_masks import chunk_mask
from kt_core.operators.operator import ModuleWeights, Operator, OperatorContext, PhasedOperator
from kt_core.plan.layers import THRESHOLD

_ATTRIBUTE = "kt_layerwise"


class DecoderModel(Operator):
    """Leaves the stack in its place and takes over how its layers are called."""

    @classmethod
    def replace(cls, original: nn.Module, context: OperatorContext) -> nn.Module:
        """Return the original."""
        return original

    @classmethod
    def finish(cls, module: nn.Module, context: OperatorContext) -> None:
        """Let the layers load their prefill kernels when a long prompt reaches them."""
        threshold = int(context.kwargs.get(THRESHOLD) or 0)
        if not threshold:
            return
        layerwise = Layerwise(threshold)
        setattr(module, _ATTRIBUTE, layerwise)
        for index, layer in enumerate(module.layers):  # type: ignore[arg-type]
            layer.forward = _LayerForward(layerwise, layer, index)

    def load(self, weights: ModuleWeights) -> None:
        """Never called: the stack's parameters are loaded like any other module's."""


class Layerwise:
    """The setting that all layers of a model share.

    Calls of more than ``threshold`` tokens go layer by layer; ``rows`` is how many tokens a layer takes
    at once, ``None`` all of them.
    """

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.rows: int | None = None


class _LayerForward:
    """A decoder layer's forward: as it was for short calls, with its prefill kernels for long ones."""

    def __init__(self, layerwise: Layerwise, layer: nn.Module, index: int) -> None:
        self._layerwise = layerwise
        self._index = index
        self._forward: Callable[..., Any] = layer.forward
        self._config: Any = getattr(layer, "config", None)
        self._attention: Any = getattr(layer, "self_attn", None)
        self._operators = [m for m in layer.modules() if isinstance(m, PhasedOperator)]

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        count = hidden_states.shape[1]
        if count <= self._layerwise.threshold:
            return self._forward(hidden_states, *args, **kwargs)
        with ExitStack() as held:
            for operator in self._operators:
                held.enter_context(operator.prefill_kernel())
            cache = kwargs.get("cache", kwargs.get("past_key_values"))
            rows = self._layerwise.rows
            # Layers without attention carry a state from token to token and take the prompt whole.
            if rows is None or rows >= count or cache is None or self._attention is None:
                return self._forward(hidden_states, *args, **kwargs)
            return self._in_chunks(hidden_states, rows, cache.layers[self._index], args, kwargs)

    def _in_chunks(
        self, hidden: torch.Tensor, rows: int, cache: Any, args: Any, kwargs: dict[str, Any]
    ) -> torch.Tensor:
        count = hidden.shape[1]
        output = torch.empty_like(hidden)
        for start in range(0, count, rows):
            part = slice(start, min(start + rows, count))
            own = {name: _rows(value, part, count) for name, value in kwargs.items()}
            own["attention_mask"] = chunk_mask(self._attention, cache, hidden[:, part])
            own_args = [_rows(value, part, count) for value in args]
            result = self._forward(hidden[:, part], *own_args, **own)
            output[:, part] = result[0] if isinstance(result, tuple) else result
        return output


def _rows(value: Any, part: slice, count: int) -> Any:
    """Those tokens of whatever has one entry per token along its second dimension."""
    if isinstance(value, torch.Tensor):
        return value[:, part] if value.dim() > 1 and value.shape[1] == count else value
    if type(value) in (tuple, list):
        return type(value)(_rows(item, part, count) for item in value)
    return value


@contextmanager
def prompt_chunks(model: nn.Module, tokens: int, chunk_size: int) -> Iterator[int]:
    """Yield how many of ``tokens`` go through ``model`` per call.

    Usually ``chunk_size``; a prompt that goes layer by layer passes whole, and each layer takes it in
    chunks, so that no layer is loaded twice.
    """
    found = (getattr(module, _ATTRIBUTE, None) for module in model.modules())
    layerwise = next((setting for setting in found if setting is not None), None)
    if layerwise is None or tokens <= layerwise.threshold:
        yield chunk_size
        return
    layerwise.rows = chunk_size
    try:
        yield tokens
    finally:
        layerwise.rows = None
