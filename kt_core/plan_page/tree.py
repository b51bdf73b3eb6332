"""The plan's modules as a tree in which members of a list that are alike stand once.

A model of 61 layers has over a thousand modules, but only a few that differ. Members of a list (names
that are numbers) whose modules are treated alike, all the way down, become one node with a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kt_core.plan.model import KernelPlan, ModulePlan, Plan

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass
class Node:
    """One module, or ``count`` members of a list that are alike (``numbers``, in order).

    ``module`` is what the plan says of it, for several members of the first one; ``None`` for a
    module that the plan need not mention, because it owns no weights and no rule takes it. Sums
    cover all that stands for, with everything inside.
    """

    name: str
    path: str
    module: ModulePlan | None = None
    children: list[Node] = field(default_factory=list)
    numbers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many modules of the model this node stands for."""
        return len(self.numbers) or 1

    @cached_property
    def stored(self) -> int:
        """Bytes in the file, each tensor once."""
        own = self.module.stored if self.module and self.module.tied_to is None else 0
        return self.count * (own + sum(child.stored for child in self.children))

    @cached_property
    def resident(self) -> dict[str, int]:
        """Bytes per device once loaded."""
        total: dict[str, int] = dict(self.module.resident) if self.module else {}
        for child in self.children:
            for device, size in child.resident.items():
                total[device] = total.get(device, 0) + size
        return {device: size * self.count for device, size in total.items()}

    @cached_property
    def modules(self) -> int:
        """Modules of the model in here, this one included."""
        return self.count * (1 + sum(child.modules for child in self.children))

    @cached_property
    def kernels(self) -> frozenset[tuple[str, str, str]]:
        """All ``(phase, kernel, device)`` in here; a module without kernels counts as ``""``."""
        found = {entry for child in self.children for entry in child.kernels}
        if self.module is not None and (self.module.decode or self.module.resident):
            found |= set(phases(self.module))
        return frozenset(found)


def phases(module: ModulePlan) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """``(phase, kernel, device)`` of prefill and decode; the kernel is ``""`` where there is none."""

    def entry(phase: str, kernel: KernelPlan | None) -> tuple[str, str, str]:
        if kernel is None:
            return (phase, "", module.device)
        return (phase, kernel.name, kernel.device)

    return entry("prefill", module.prefill), entry("decode", module.decode)


def plan_tree(plan: Plan) -> Node:
    """Return the root of the tree; its path is ``""``."""
    root = Node("", "")
    nodes = {"": root}

    def node_at(path: str) -> Node:
        if path not in nodes:
            parent, _, name = path.rpartition(".")
            nodes[path] = Node(name, path)
            node_at(parent).children.append(nodes[path])
        return nodes[path]

    for module in plan.modules:
        node_at(module.path).module = module
    _fold(root)
    return root


def _fold(node: Node) -> tuple[Any, ...]:
    """Put alike members of lists together below ``node``, and return what tells it from others."""
    groups: dict[Any, list[Node]] = {}
    for child in node.children:
        alike = _fold(child)
        # The key of a member of a list is what it is, that of any other child also its name.
        name = None if _NUMBER.fullmatch(child.name) else child.name
        groups.setdefault((name, alike), []).append(child)
    node.children = [_together(group) for group in groups.values()]
    return (_treatment(node.module), tuple(groups))


def _together(group: list[Node]) -> Node:
    first = group[0]
    if len(group) == 1:
        return first
    numbers = tuple(int(node.name) for node in group)
    return Node(ranges(numbers), first.path, first.module, first.children, numbers)


def _treatment(module: ModulePlan | None) -> Any:
    """All of a module's plan but its own names."""
    if module is None:
        return None
    return (
        module.class_name,
        module.operator,
        module.rule,
        module.device,
        module.out_device,
        _plain(module.kwargs),
        *(
            (kernel.name, kernel.device, _plain(kernel.options)) if kernel else None
            for kernel in (module.prefill, module.decode)
        ),
        module.types,
        module.stored,
        tuple(sorted(module.resident.items())),
        module.tied_to,
    )


def _plain(options: Mapping[str, Any]) -> str:
    return repr(sorted(options.items()))


def ranges(numbers: Iterable[int]) -> str:
    """``(0, 1, 2, 7)`` -> ``0-2, 7``, with en dashes."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}\u2013{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
