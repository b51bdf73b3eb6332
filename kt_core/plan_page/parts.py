"""Pieces of the page: escaping, colours, and the rows of the tree."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from kt_core.plan.model import KernelPlan, ModulePlan, Plan
from kt_core.plan_page.tree import Node, phases
from kt_core.units import human_bytes
from kt_core.weights.text import printable

COLOURS = 10
"""Classes ``d0`` … and ``k0`` … in the style sheet; more devices or kernels begin again."""
_TENSORS_SHOWN = 8
_RUNS_SHOWN = 3
_LIMIT = 4096


def esc(text: object) -> str:
    """Return ``text`` for HTML, in an element or a quoted attribute; odd characters made visible.

    Names of tensors and modules come from files that anyone may have written.
    """
    return html.escape(printable(str(text), _LIMIT))


def size(count: int) -> str:
    """Return bytes for people, a dash for none."""
    return human_bytes(count) if count else "\u2013"


@dataclass
class Palette:
    """Which colour a device or kernel has: the order in which the plan first names them."""

    devices: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan) -> Palette:
        """Collect all devices (the CPU first) and kernels of ``plan``."""
        devices = {plan.default_device, *plan.resident, *plan.cache.bytes_per_device}
        kernels: dict[str, None] = {}
        for module in plan.modules:
            for kernel in (module.prefill, module.decode):
                if kernel is not None:
                    devices.add(kernel.device)
                    kernels.setdefault(kernel.name)
        return cls(sorted(devices, key=lambda name: (name != "cpu", name)), list(kernels))

    def device(self, name: str) -> str:
        """The class of a device's colour."""
        return f"d{self.devices.index(name) % COLOURS}"

    def kernel(self, name: str) -> str:
        """The class of a kernel's colour."""
        return f"k{self.kernels.index(name) % COLOURS}"

    def tags(self, entries: Iterable[tuple[str, str, str]]) -> str:
        """What the filters look for: numbers of devices and kernels, as words."""
        found: set[str] = set()
        for _, kernel, device in entries:
            found.add(f"D{self.devices.index(device)}")
            if kernel:
                found.add(f"K{self.kernels.index(kernel)}")
        return " ".join(sorted(found))


def chip(palette: Palette, kernel: str, device: str) -> str:
    """A kernel on a device: the ground is the device's colour, the mark the kernel's."""
    colour = f'<span class="chip {palette.device(device)}" title="{esc(kernel)} {esc(device)}">'
    if not kernel:
        return f"{colour}<span>{esc(device)}</span></span>"
    mark = f'<i class="mark {palette.kernel(kernel)}"></i>'
    return f"{colour}{mark}<span>{esc(kernel)}</span><small>{esc(device)}</small></span>"


def bar(palette: Palette, resident: Mapping[str, int], whole: int, *, cache: int = 0) -> str:
    """Bytes per device as a stack, on a scale where ``whole`` fills the width.

    ``cache`` bytes are added to the stack in the last device's colour, hatched.
    """
    pieces = [(device, "", count) for device, count in sorted(resident.items())]
    pieces += [(pieces[-1][0], " cache", cache)] if pieces else []
    parts = [
        f'<i class="{palette.device(device)}{more}" style="width:{100 * count / whole:.2f}%"'
        f' title="{esc(device)}{more}: {human_bytes(count)}"></i>'
        for device, more, count in pieces
        if count and whole
    ]
    return f'<span class="bar">{"".join(parts)}</span>'


def short_place(place: str) -> str:
    """``/home/me/rules/cpu.yaml:9:5`` -> ``cpu.yaml:9``."""
    path, line, _ = [*place.rsplit(":", 2), "", ""][:3]
    return f"{PurePath(path).name}:{line}" if line.isdecimal() else PurePath(place).name


@dataclass
class Rows:
    """Writes the tree."""

    plan: Plan
    palette: Palette

    def root(self, node: Node) -> Iterator[str]:
        """Yield the lines of the whole tree."""
        yield from self._node(node, 0, sum(node.resident.values()), each=False, is_open=True)

    def _node(
        self, node: Node, level: int, whole: int, *, each: bool, is_open: bool
    ) -> Iterator[str]:
        """Yield one node and all below it; ``whole`` bytes fill a bar, ``each``: of several."""
        name = node.name or self.plan.architecture
        module, resident = node.module, sum(node.resident.values())
        tags = self.palette.tags(phases(module)) if module is not None and _works(module) else ""
        more = "<small> each</small>" if each else ""
        yield (
            f'<details class="n" data-p="{esc(node.path)}" data-n="{_numbers(node)}"'
            f' data-t="{tags}"{" open" if is_open else ""}>'
            f'<summary style="--l:{level}">{self._name(node, name)}{self._phases(node, whole)}'
            f'<span class="num">{size(node.stored)}{more if node.stored else ""}</span>'
            f'<span class="num">{size(resident)}{more if resident else ""}</span>'
            f"{self._rule(module)}</summary>"
        )
        if module is not None and (_is_told(module) or not node.children):
            yield facts(self.module_facts(node, module))
        elif _is_cut(node):
            yield facts([("stands for", f"{name}; below, the first of them")])
        if node.count > 1:
            each, whole = True, resident // node.count
        opened = _first_to_see(node, level)
        for child in node.children:
            still_open = is_open and child is opened
            yield from self._node(child, level + 1, whole, each=each, is_open=still_open)
        yield "</details>"

    def _name(self, node: Node, name: str) -> str:
        what = node.module.class_name if node.module is not None else ""
        shown = ", ".join(name.split(", ")[:_RUNS_SHOWN]) + " …" if _is_cut(node) else name
        alike = (
            f'<em title="{node.count} members that are alike: {esc(name)}">\u00d7{node.count}</em>'
            if node.numbers
            else ""
        )
        return f'<span class="name"><b>{esc(shown)}</b>{alike} <span>{esc(what)}</span></span>'

    def _phases(self, node: Node, whole: int) -> str:
        if node.module is not None and _works(node.module):
            prefill, decode = phases(node.module)
            first = chip(self.palette, prefill[1], prefill[2])
            if prefill[1:] == decode[1:]:
                return f'<span class="both">{first}</span>'
            return f"<span>{first}</span><span>{chip(self.palette, decode[1], decode[2])}</span>"
        stack = bar(self.palette, node.resident, whole) if node.resident else ""
        operator = node.module.operator if node.module is not None else "default"
        label = f"<small>{esc(operator)}</small>" if operator != "default" else ""
        return f'<span class="both share">{stack}{label}</span>'

    def _rule(self, module: ModulePlan | None) -> str:
        if module is None or module.rule is None:
            return '<span class="rule">\u2013</span>'
        return (
            f'<span class="rule"><a href="#rule-{module.rule + 1}" title="{esc(module.place)}">'
            f"{module.rule + 1}</a> {esc(short_place(module.place))}</span>"
        )

    def module_facts(self, node: Node, module: ModulePlan) -> Iterator[tuple[str, str]]:
        """Yield (what, text) of all that the plan knows of a module."""
        if node.count > 1:
            yield "stands for", f"{node.count} modules that are alike; below, the first of them"
        yield "module", module.path or "(the whole model)"
        if module.operator != "default":
            yield "operator", f"{module.operator}, from {module.distribution}"
        if module.rule is None:
            yield "rule", f"none matches; it stays as it is on {self.plan.default_device}"
        else:
            yield "rule", f"{module.rule + 1}, {module.place}"
        for phase, kernel in (("prefill", module.prefill), ("decode", module.decode)):
            if kernel is not None:
                yield phase, _kernel(kernel)
        if module.out_device is not None:
            yield "result goes to", module.out_device
        if module.types:
            yield "stored as", f"{' '.join(module.types)}, {human_bytes(module.stored)}"
        if module.resident:
            each = ", ".join(f"{human_bytes(n)} on {d}" for d, n in sorted(module.resident.items()))
            yield "in memory", each
        if module.tied_to is not None:
            yield "shares", module.tied_to
        tensors = module.tensors
        if tensors:
            more = f", … {len(tensors) - _TENSORS_SHOWN} more" * (len(tensors) > _TENSORS_SHOWN)
            yield "tensors", ", ".join(tensors[:_TENSORS_SHOWN]) + more
        if module.kwargs:
            yield "kwargs", _options(module.kwargs)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of what and how."""
    items = "".join(f"<dt>{esc(what)}</dt><dd>{esc(text)}</dd>" for what, text in pairs)
    return f"<dl>{items}</dl>"


def table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table; cells of ``rows`` are HTML already."""
    cells = "".join(f'<th scope="col">{esc(word)}</th>' for word in head)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _works(module: ModulePlan) -> bool:
    """Whether the module computes with weights of its own, rather than only holding others."""
    return bool(module.decode or module.resident or module.tied_to)


def _is_cut(node: Node) -> bool:
    """Whether a row names only the first of a folded list's members."""
    return bool(node.numbers) and node.name.count(",") >= _RUNS_SHOWN


def _first_to_see(node: Node, level: int) -> Node | None:
    """The child that is open at first: the heaviest, but near the root one that holds others."""
    return max(
        node.children,
        key=lambda child: (level < 2 and bool(child.children), sum(child.resident.values())),
        default=None,
    )


def _is_told(module: ModulePlan) -> bool:
    """Whether there is more to say of a module than that it holds others."""
    return _works(module) or module.operator != "default"


def _kernel(kernel: KernelPlan) -> str:
    text = f"{kernel.name} on {kernel.device}, from {kernel.distribution}"
    text += f" ({kernel.detail})" if kernel.detail else ""
    return text + (f"; {_options(kernel.options)}" if kernel.options else "")


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in options.items())


def _numbers(node: Node) -> str:
    """``0-2,7`` for the search: which numbers the last word of the path stands for."""
    return node.name.replace("\u2013", "-").replace(" ", "") if node.numbers else ""
