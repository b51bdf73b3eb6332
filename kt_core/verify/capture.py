"""What goes into and comes out of modules while a model runs, and how calls are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Call:
    """One call of a module. Tensors are copies on the CPU unless they were kept as they are."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


@contextmanager
def recording(
    modules: Mapping[str, nn.Module], *, copy: bool = True
) -> Iterator[dict[str, list[Call]]]:
    """Record all calls of ``modules`` (by any name) until the block ends.

    ``copy``: tensors are copied to the CPU; otherwise inputs are the tensors themselves, for
    modules that are to be called again with them.
    """
    calls: dict[str, list[Call]] = {name: [] for name in modules}
    pending: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
        name: [] for name in modules
    }
    handles = []

    def keep(value: Any) -> Any:
        return _map(
            value, lambda t: t.detach().to("cpu", copy=True) if copy else t.detach().clone()
        )

    for name, module in modules.items():

        def before(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            pending[name].append((keep(args), keep(kwargs)))

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            given, named = pending[name].pop()
            calls[name].append(Call(given, named, keep(output)))

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first floating-point tensor in an output, which is what a module is about."""
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() or value.is_complex() else None
    if isinstance(value, tuple | list):
        return next((t for item in value if (t := first_tensor(item)) is not None), None)
    return None


def joined(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor | None:
    """Put what several calls got or gave together to the shape of ``like``, one call's.

    ``None`` if they do not make up such a tensor.
    """
    if len(parts) == 1 and parts[0].shape == like.shape:
        return parts[0]
    if all(part.dim() == like.dim() for part in parts):
        for axis in range(like.dim()):
            others = [n for i, n in enumerate(like.shape) if i != axis]
            fits = all([n for i, n in enumerate(p.shape) if i != axis] == others for p in parts)
            if fits and sum(part.shape[axis] for part in parts) == like.shape[axis]:
                return torch.cat(list(parts), dim=axis)
    if like.dim() and all(p.dim() and p.shape[-1] == like.shape[-1] for p in parts):
        flat = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
        if flat.numel() == like.numel():
            return flat.reshape(like.shape)
    return None


def with_inputs_of(
    call: Call, calls: Sequence[Call], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of ``call`` with the tensors that the other side's ``calls`` had.

    What cannot be put together (masks, caches) stays as the reference has it. ``None`` if not even
    the first tensor can.
    """
    replaced = 0

    def take(own: Any, theirs: Sequence[Any]) -> Any:
        nonlocal replaced
        if isinstance(own, tuple | list) and all(
            isinstance(t, tuple | list) and len(t) == len(own) for t in theirs
        ):
            return type(own)(take(o, [t[i] for t in theirs]) for i, o in enumerate(own))
        if not isinstance(own, torch.Tensor) or not all(
            isinstance(t, torch.Tensor) for t in theirs
        ):
            return own
        found = joined(theirs, own)
        if found is None:
            return own
        replaced += found.is_floating_point()
        return found.to(device, own.dtype)

    args = []
    for i, own in enumerate(call.args):
        theirs = [other.args[i] if i < len(other.args) else None for other in calls]
        args.append(take(own, theirs))
    kwargs = {
        name: take(own, [other.kwargs.get(name) for other in calls])
        for name, own in call.kwargs.items()
    }
    return (tuple(args), kwargs) if replaced else None


def with_cache(value: Any, cache: Any) -> Any:
    """Exchange the key/value cache among arguments."""
    if hasattr(value, "get_seq_length"):
        return cache
    if isinstance(value, tuple):
        return tuple(with_cache(item, cache) for item in value)
    if isinstance(value, dict):
        return {name: with_cache(item, cache) for name, item in value.items()}
    return value


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_map(item, change) for item in value)
    if type(value) is dict:
        return {key: _map(item, change) for key, item in value.items()}
    return value


def only_tensor(output: Any) -> torch.Tensor:
    """A layer's hidden states; some releases return them in a tuple."""
    tensor = first_tensor(output)
    if tensor is None:
        raise TypeError("a decoder layer returned no hidden states")
    return tensor


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of nested tuples and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [t for item in value for t in tensors_in(item)] if isinstance(value, tuple | list) else []
    )


def as_real(value: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of float32 along the last dimension."""
    return torch.view_as_real(value).flatten(-2) if value.is_complex() else value.float()
