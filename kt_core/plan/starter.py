"""A first rule file for a model that has none: its modules in groups, placed for this machine."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kt_core.operators.kernel import KernelContext
from kt_core.plan.devices import kind_of
from kt_core.plan.model import ModulePlan, Plan
from kt_core.plan.skeleton import skeleton_of
from kt_core.registry.registry import Registry
from kt_core.registry.specs import EXPERTS, LINEAR, Accepted
from kt_core.units import human_bytes
from kt_core.weights import TensorInfo

CPU = "cpu"
_ROOM = 0.9
"""Share of a GPU's free memory that weights and cache may take; the rest is for activations."""

_OPERATORS = {LINEAR: "kt_core.Linear", EXPERTS: "kt_core.Experts"}
_LAYER = re.compile(r"^(.*?\.)\d+\.")


@dataclass(frozen=True)
class Machine:
    """What the file is to run on. ``gpus`` maps device names to free bytes, ``memory`` is the host's."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    memory: int | None = None

    def __str__(self) -> str:
        parts = [f"{name} with {human_bytes(free)} free" for name, free in self.gpus.items()]
        parts += [f"{human_bytes(self.memory)} of memory"] if self.memory else []
        return ", ".join(parts) or "a CPU"


@dataclass
class Group:
    """Modules that one rule covers. ``kind`` is a kernel kind or ``""``."""

    kind: str
    what: str
    name: str
    match_class: str | None
    modules: list[ModulePlan] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes, as stored where a file is known, else as they would lie in memory."""
        return sum(m.stored or sum(m.resident.values()) for m in self.modules if m.tied_to is None)

    @property
    def types(self) -> tuple[str, ...]:
        """Stored types."""
        return tuple(dict.fromkeys(t for m in self.modules for t in m.types))


def groups_of(model: nn.Module, plan: Plan) -> list[Group]:
    """Group the modules of ``plan``, which keeps every module as it is, in the order of rules."""
    experts: list[ModulePlan] = []
    linears: list[ModulePlan] = []
    outside: list[ModulePlan] = []
    rest: list[ModulePlan] = []
    modules = {m.path: m for m in skeleton_of(model).modules}
    for module in plan.modules:
        info = modules[module.path]
        if not info.parameters:
            continue
        if any(p.name == "down_proj" and len(p.shape) == 3 for p in info.parameters):
            experts.append(module)
        elif "torch.nn.modules.linear.Linear" in info.classes:
            (linears if _LAYER.match(module.path) else outside).append(module)
        else:
            rest.append(module)
    found = []
    if experts:
        ending = _LAYER.sub("", experts[0].path)
        found.append(Group(EXPERTS, "Routed experts", rf"\.{re.escape(ending)}$", None, experts))
    if linears:
        begin = _LAYER.match(linears[0].path)
        name = f"^{re.escape(begin[1])}" if begin else "."
        found.append(Group(LINEAR, "Linear layers", name, "torch.nn.Linear", linears))
    if outside:
        paths = "|".join(re.escape(m.path) for m in outside)
        name = f"^{paths}$" if len(outside) == 1 else f"^({paths})$"
        found.append(Group(LINEAR, "The head", name, "torch.nn.Linear", outside))
    embeddings = [m for m in rest if "torch.nn.modules.sparse.Embedding" in modules[m.path].classes]
    if len(embeddings) == 1:
        found.append(
            Group("", "The embedding", f"^{re.escape(embeddings[0].path)}$", None, embeddings)
        )
        rest = [m for m in rest if m not in embeddings]
    if rest:
        found.append(Group("", "Norms, routers and all else", ".", None, rest))
    return found


@dataclass(frozen=True)
class Placement:
    """Where the groups go, and why."""

    main: str
    experts: str
    why: str


def place(groups: Sequence[Group], plan: Plan, machine: Machine) -> Placement:
    """Decide what fits where."""
    cache = plan.cache.bytes_per_token * plan.cache.context
    whole = sum(group.size for group in groups) + cache
    experts = sum(group.size for group in groups if group.kind == EXPERTS)
    for device, free in machine.gpus.items():
        room = free * _ROOM
        if whole <= room:
            return Placement(
                device, device, f"all of it, {human_bytes(whole)} with the cache, fits"
            )
        if experts and whole - experts <= room:
            why = f"without its experts it fits on {device}: {human_bytes(whole - experts)}"
            return Placement(device, CPU, why)
    why = f"{human_bytes(whole)} fit on no GPU that is here" if machine.gpus else "no GPU is here"
    if machine.memory is not None and whole > machine.memory:
        why += f"; mind that {human_bytes(whole)} are more than the memory"
    return Placement(CPU, CPU, why)


def candidates(registry: Registry, kind: str, device: str, group: Group, plan: Plan) -> list[str]:
    """Kernels that can serve a group on a device here, the best first.

    Those that compute on packed weights come before the core's, which dequantise; among them the
    more exact ones first.
    """
    ranked: list[tuple[bool, float, str]] = []
    for found in registry.kernels(kind):
        spec = found.spec
        if kind_of(device) not in spec.devices:
            continue
        if "*" not in spec.weight_formats and not set(group.types) <= set(spec.weight_formats):
            continue
        if not isinstance(registry.probe(spec, kind_of(device)), Accepted):
            continue
        context = KernelContext(
            group.modules[0].path, getattr(torch, plan.dtype), torch.device(device), {}
        )
        target: Any = registry.load_target(spec)
        promise = target.accuracy(None, list(_infos(group)), context)
        core = found.plugin.distribution == "kt-core"
        ranked.append((core, promise.relative if promise else 0.0, spec.name))
    return [name for _, _, name in sorted(ranked)]


def _infos(group: Group) -> Iterator[TensorInfo]:
    from kt_core.weights import QuantType

    for kind in group.types or ("F32",):
        yield TensorInfo("weight", (1, 256), QuantType(kind), 0, 0)


def text(
    plan: Plan,
    groups: Sequence[Group],
    placement: Placement,
    machine: Machine,
    kernels: Mapping[str, str | None],
) -> str:
    """The rule file. ``kernels`` names one kernel per group's ``what``; ``None`` keeps its modules."""
    source = plan.weights or "its configuration"
    head = [
        f"# A first rule file for {plan.architecture}, from {source}.",
        f"# Written for this machine: {machine}.",
        f"# Placement: {placement.why}.",
        "# Check it with kt-validate --strict, look at kt plan --rules FILE, then try kt verify.",
        "version: 1",
        f"architectures: [{plan.architecture}]",
        f"description: {json.dumps(f'Modules on {_where(placement)}.')}",
        "rules:",
    ]
    rules = [_rule(group, placement, kernels.get(group.what)) for group in groups]
    return "\n".join(head) + "\n" + "\n\n".join(rules) + "\n"


def _where(placement: Placement) -> str:
    if placement.main == placement.experts:
        return placement.main
    return f"{placement.main}, routed experts on the {placement.experts.upper()}"


def _rule(group: Group, placement: Placement, kernel: str | None) -> str:
    device = placement.experts if group.kind == EXPERTS else placement.main
    if group.what == "The embedding" and placement.main != placement.experts:
        device = CPU  # a table look-up costs nothing there
    lines = [f"  # {line}" for line in _comment(group)]
    lines += ["  - match:", f"      name: {_scalar(group.name)}"]
    if group.match_class is not None:
        lines.append(f"      class: {group.match_class}")
    operator = _OPERATORS[group.kind] if kernel is not None else "default"
    lines += ["    replace:", f"      class: {operator}", "      kwargs:"]
    lines += [f"        generate_device: {device}", f"        prefill_device: {device}"]
    if kernel is not None:
        lines += [f"        generate_op: {kernel}", f"        prefill_op: {kernel}"]
    if group.kind == EXPERTS:
        if kernel is not None and device != placement.main:
            lines.append(f"        out_device: {placement.main}")
        lines.append("    recursive: false")
    return "\n".join(lines)


def _comment(group: Group) -> Iterator[str]:
    """What the group is made of, by the names inside a layer."""
    stored = f", as {' '.join(group.types)}" if group.types else ""
    number = len(group.modules)
    modules = f"{number} module{'' if number == 1 else 's'}"
    yield f"{group.what}: {modules}, {human_bytes(group.size)}{stored}."
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for module in group.modules:
        key = (module.class_name, _LAYER.sub("", module.path))
        counts[key] += 1
        if module.tied_to is None:
            sizes[key] += module.stored or sum(module.resident.values())
    for (class_name, name), count in counts.items():
        yield f"  {count} x {class_name} {name}: {human_bytes(sizes[class_name, name])}"


def _scalar(pattern: str) -> str:
    plain = pattern[0] in "^\\" and not any(mark in pattern for mark in (": ", " #", "'"))
    return pattern if plain else "'" + pattern.replace("'", "''") + "'"
