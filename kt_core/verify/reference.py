"""The plain side of the comparison: transformers' own modules in float32, one layer at a time.

Nothing is cached between tokens: all tokens go through a layer in one call, so the reference also
checks that the plan's cache gives back what was put into it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from kt_core.errors import PlanError
from kt_core.models.hf import rebuild_buffers, reference_model
from kt_core.verify.truth import Truth
from kt_core.weights import WeightSource

Fallback = Callable[[str], torch.Tensor | None]
"""A parameter as the adapter makes it, for what the truth does not know."""

_HEAD_ROWS = 8192
"""Rows of the head at a time: a whole one is gigabytes in float32."""

_EXPERT_VALUES = 1 << 26
"""Values of experts that are dequantised at a time, 256 MiB."""


class Reference:
    """Builds pieces of the model of ``config`` with the values of ``truth`` on ``device``.

    ``unread`` names the parameters that only ``fallback`` knew, so that nothing was proven of them.
    """

    def __init__(
        self,
        config: Any,
        truth: Truth,
        fallback: Fallback,
        source: WeightSource,
        device: torch.device,
    ) -> None:
        self.model = reference_model(config)
        self.truth = truth
        self.device = device
        self.unread: set[str] = set()
        self._fallback = fallback
        self._source = source
        self.columns = config.model_type == "gpt_oss"
        self._inner: Any = self.model.get_submodule("model")

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self._inner.layers)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed ``ids`` ``(1, n)``; only their rows are read."""
        used, places = torch.unique(ids, return_inverse=True)
        module: Any = copy.deepcopy(self._inner.embed_tokens)
        name, rows = "model.embed_tokens.weight", used.cpu().numpy().astype(np.int64)
        values = self.truth.parameter(name, module.weight.shape, rows)
        if values is None:
            values = self._from_adapter(name)[used]
        module._parameters["weight"] = nn.Parameter(values.to(self.device), requires_grad=False)
        module.padding_idx = None
        self._buffers(module)
        embedded: torch.Tensor = module(places.to(self.device))
        return embedded

    def calls(self, embedded: torch.Tensor) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """What transformers hands to each layer beside the hidden states, for all tokens at once."""
        shell: Any = copy.deepcopy(self._inner)
        for module in shell.modules():
            self._buffers(module)
        divide_frequencies(shell, self._source)
        seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def stand_in(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            seen.append((args, kwargs))
            return hidden_states

        for layer in shell.layers:
            layer.forward = stand_in
        shell.norm.forward = lambda hidden_states: hidden_states
        shell(inputs_embeds=embedded, use_cache=False)
        return seen

    def layer(self, number: int) -> nn.Module:
        """Layer ``number`` with its weights; its experts are read when they are called."""
        layer: nn.Module = copy.deepcopy(self._inner.layers[number])
        self.fill(layer, f"model.layers.{number}")
        return layer

    def outside(self, path: str) -> nn.Module:
        """A small module beside the layers, such as the last norm."""
        module = copy.deepcopy(self.model.get_submodule(path))
        self.fill(module, path)
        return module

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of ``hidden`` ``(…, hidden)``, computed in slices of the vocabulary."""
        module: Any = self.model.get_submodule("lm_head")
        count = int(module.weight.shape[0])
        parts = []
        for first in range(0, count, _HEAD_ROWS):
            rows = slice(first, min(first + _HEAD_ROWS, count))
            values = self.truth.parameter("lm_head.weight", module.weight.shape, rows)
            if values is None:
                values = self._from_adapter("lm_head.weight")[rows]
            parts.append(nn.functional.linear(hidden, values.to(self.device)))
        logits = torch.cat(parts, dim=-1)
        if module.bias is not None:
            logits = logits + self._parameter("lm_head.bias", module.bias.shape).to(self.device)
        return logits

    def fill(self, root: nn.Module, path: str) -> None:
        """Give every parameter and buffer below ``root`` its values, in place."""
        for inner, module in list(root.named_modules()):
            place = f"{path}.{inner}" if inner else path
            if holds_experts(module):
                parent, _, name = inner.rpartition(".")
                read = functools.partial(self.experts, place)
                experts = StreamedExperts(module, read, self.device)
                root.get_submodule(parent)._modules[name] = experts
                continue
            for owner in (module._parameters, module._buffers):
                for name, empty in owner.items():
                    if empty is None or name in module._non_persistent_buffers_set:
                        continue
                    values = self._parameter(f"{place}.{name}", empty.shape).to(self.device)
                    is_parameter = owner is module._parameters
                    owner[name] = (
                        nn.Parameter(values, requires_grad=False) if is_parameter else values
                    )
            self._buffers(module)

    def experts(self, path: str, parameter: str, numbers: Sequence[int]) -> torch.Tensor:
        """Some experts' part of a fused parameter."""
        values = self.truth.experts(path, parameter, numbers, self.columns)
        if values is None:
            values = self._from_adapter(f"{path}.{parameter}")[list(numbers)]
        return values

    def parameter(self, name: str, shape: Sequence[int]) -> torch.Tensor | None:
        """A parameter by the truth alone."""
        return self.truth.parameter(name, shape)

    def _parameter(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        values = self.truth.parameter(name, shape)
        return self._from_adapter(name).reshape(tuple(shape)) if values is None else values

    def _from_adapter(self, name: str) -> torch.Tensor:
        values = self._fallback(name)
        if values is None:
            raise PlanError.of(
                "KT360",
                f"there is nothing to hold {name} against",
                facts=["neither kt's second reading of the file nor the adapter finds its values"],
                help="the table of names is in kt_core/verify/truth.py; report the architecture",
            )
        self.unread.add(name)
        return values

    def _buffers(self, module: nn.Module) -> None:
        rebuild_buffers(module, self.model.config, self.device)


class StreamedExperts(nn.Module):
    """transformers' experts, of which only those that are routed to are dequantised, few at a time."""

    def __init__(
        self,
        original: nn.Module,
        read: Callable[[str, Sequence[int]], torch.Tensor],
        device: torch.device,
    ) -> None:
        super().__init__()
        self._original = [original]  # in a list, so that it is no submodule
        self._read = read
        self._device = device
        self.names = [name for name, _ in original.named_parameters(recurse=False)]
        self.num_experts = int(dict(original.named_parameters())[self.names[0]].shape[0])
        each = sum(p.numel() // self.num_experts for p in original.parameters())
        self._at_once = max(1, _EXPERT_VALUES // each)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum over each token's experts."""
        output = torch.zeros_like(hidden_states)
        for numbers in self._groups(top_k_index):
            module = self.some(numbers)
            places = torch.zeros(self.num_experts, dtype=torch.long, device=top_k_index.device)
            places[numbers] = torch.arange(len(numbers), device=top_k_index.device)
            chosen = torch.isin(top_k_index, torch.tensor(numbers, device=top_k_index.device))
            rows = chosen.any(dim=1)
            index = torch.where(chosen, places[top_k_index.clamp(min=0)], 0)[rows]
            weights = torch.where(chosen, top_k_weights, 0.0)[rows]
            output[rows] += module(hidden_states[rows], index, weights)
        return output

    def some(self, numbers: Sequence[int]) -> nn.Module:
        """The original module with the experts ``numbers`` only."""
        module: Any = copy.deepcopy(self._original[0])
        for name in self.names:
            values = self._read(name, numbers).to(self._device)
            module._parameters[name] = nn.Parameter(values, requires_grad=False)
        module.num_experts = len(numbers)
        return module  # type: ignore[no-any-return]

    def _groups(self, top_k_index: torch.Tensor) -> Iterator[list[int]]:
        used = [n for n in torch.unique(top_k_index).tolist() if 0 <= n < self.num_experts]
        for first in range(0, len(used), self._at_once):
            yield used[first : first + self._at_once]


def holds_experts(module: nn.Module) -> bool:
    """Whether ``module`` itself holds the fused weights of several experts."""
    down = module._parameters.get("down_proj")
    return down is not None and down.dim() == 3


def divide_frequencies(model: nn.Module, source: WeightSource) -> None:
    """Apply the divisors that Llama 3.1's files keep beside the plain rotary frequencies."""
    if source.format != "gguf" or "rope_freqs.weight" not in source.tensors:
        return
    divisors = torch.from_numpy(source.tensor("rope_freqs.weight").dequantize())
    for module in model.modules():
        values = getattr(module, "inv_freq", None)
        if isinstance(values, torch.Tensor) and values.shape == divisors.shape:
            module.inv_freq = values / divisors.to(values.device)
