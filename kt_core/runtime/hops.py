"""Moves between devices, where the plan spreads a model over more than one.

Hidden states follow the layers: each decoder layer's inputs are brought to its device. A module that
lives elsewhere than its layer gets its input moved in and its output moved back. Operators with
kernels do their own moving.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kt_core.plan.layers import layer_devices
from kt_core.plan.model import Plan


def install_hops(model: nn.Module, plan: Plan) -> int:
    """Register the hooks that ``plan`` needs; return how many. One device needs none."""
    plain = [m for m in plan.modules if m.decode is None and m.resident]
    devices = {device for module in plan.modules for device in module.resident}
    if len(devices) < 2:
        return 0
    layers = layer_devices(plain)
    count = 0
    for path, device in layers.items():
        _move_inputs(model.get_submodule(path), torch.device(device))
        count += 1
    for module in plain:
        home = layers.get(".".join(module.path.split(".")[:3]))
        if home == module.device:
            continue
        target = model.get_submodule(module.path)
        _move_inputs(target, torch.device(module.device))
        if home is not None:
            _move_outputs(target, torch.device(home))
        count += 1
    return count


def _move_inputs(module: nn.Module, device: torch.device) -> None:
    def hook(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return _moved(args, device), _moved(kwargs, device)

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _move_outputs(module: nn.Module, device: torch.device) -> None:
    def hook(_: nn.Module, args: Any, output: Any) -> Any:
        return _moved(output, device)

    module.register_forward_hook(hook)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if type(value) in (tuple, list):
        return type(value)(_moved(item, device) for item in value)
    if type(value) is dict:
        return {key: _moved(item, device) for key, item in value.items()}
    return value
