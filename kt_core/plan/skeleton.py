"""The model as the plan sees it: paths, class names and parameter shapes. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter or persistent buffer a module owns itself. ``bytes_each`` is per value."""

    name: str
    shape: tuple[int, ...]
    bytes_each: int

    @property
    def numel(self) -> int:
        """Number of values."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count


@dataclass(frozen=True)
class ModuleInfo:
    """One module. ``classes`` are the qualified names of its class hierarchy, its own first."""

    path: str
    classes: tuple[str, ...]
    parameters: tuple[ParameterInfo, ...]

    @property
    def class_name(self) -> str:
        """Short name of its own class."""
        return self.classes[0].rpartition(".")[2]


@dataclass(frozen=True)
class Skeleton:
    """All modules in pre-order, the root (path ``""``) first.

    ``aliases`` maps further paths of modules that can be reached by two names to the first one.
    """

    modules: tuple[ModuleInfo, ...]
    aliases: dict[str, str]


def _hierarchy(cls: type) -> tuple[str, ...]:
    return tuple(f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__[:-1])


def skeleton_of(model: nn.Module) -> Skeleton:
    """Describe ``model``, usually on the meta device."""
    modules: list[ModuleInfo] = []
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    hierarchies: dict[type, tuple[str, ...]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in first:
            aliases[path] = first[id(module)]
            continue
        first[id(module)] = path
        own = [
            *module.named_parameters(recurse=False),
            *(
                (name, buffer)
                for name, buffer in module.named_buffers(recurse=False)
                if name not in module._non_persistent_buffers_set
            ),
        ]
        parameters = tuple(
            ParameterInfo(name, tuple(tensor.shape), tensor.dtype.itemsize) for name, tensor in own
        )
        cls = type(module)
        if cls not in hierarchies:
            hierarchies[cls] = _hierarchy(cls)
        modules.append(ModuleInfo(path, hierarchies[cls], parameters))
    return Skeleton(tuple(modules), aliases)
