"""Which threads run where: NUMA nodes, their CPUs, and how work is split over them.

Everything here is a pure function of a :class:`Topology`, so that machines which are not at hand
can be tested. ``KT_CPU_TOPOLOGY`` (``"0,1;2,3"``: the CPUs of each node) replaces what the system
says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kt_core.errors import KernelError
from kt_core.registry.machine import ROOT, affinity

TOPOLOGY_VARIABLE = "KT_CPU_TOPOLOGY"
MAX_NODES = 16


@dataclass(frozen=True)
class Topology:
    """The CPUs of each node that this process may use; at least one node, none of them empty."""

    nodes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Placement:
    """``node_of_thread[i]`` is the node of thread ``i``; thread 0 is whoever calls."""

    topology: Topology
    node_of_thread: tuple[int, ...]


def read_topology(environ: Mapping[str, str], root: Path = ROOT) -> Topology:
    """Return the nodes of this machine, limited to the process' affinity.

    Raises:
        KernelError: KT507 if ``KT_CPU_TOPOLOGY`` is malformed.
    """
    text = environ.get(TOPOLOGY_VARIABLE)
    if text is not None:
        return _parse_topology(text)
    allowed = affinity()
    nodes = []
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=_number):
        cpus = parse_cpu_list(_read(folder / "cpulist"))
        own = tuple(cpu for cpu in cpus if allowed is None or cpu in allowed)
        if own:
            nodes.append(own)
    if not nodes or len(nodes) > MAX_NODES:
        # A system that says nothing about nodes: one node, and no CPUs to keep threads to.
        nodes = [tuple(sorted(allowed or ()))]
    return Topology(tuple(nodes))


def place(topology: Topology, threads: int) -> Placement:
    """Deal ``threads`` out over the nodes in proportion to their CPUs, at least one to each used.

    With fewer threads than nodes only the first ``threads`` nodes are used.
    """
    nodes = topology.nodes[: min(threads, len(topology.nodes))]
    sizes = [max(1, len(cpus)) for cpus in nodes]
    node_of_thread: list[int] = []
    given = [0] * len(nodes)
    for _ in range(threads):
        # The node that is furthest below its share; the first of equals.
        node = min(range(len(nodes)), key=lambda n: (given[n] / sizes[n], n))
        given[node] += 1
        node_of_thread.append(node)
    return Placement(Topology(nodes), tuple(node_of_thread))


def split_width(width: int, nodes: int, block: int = 256) -> list[int]:
    """Return where each node's part of an expert's ``width`` begins; ``width`` ends the list.

    Parts are whole blocks of ``block`` values but for the last one, and as even as they go; earlier
    nodes get the larger parts. The native library splits in the same way.
    """
    blocks = -(-width // block)
    return [min(width, -(-blocks * n // nodes) * block) for n in range(nodes + 1)]


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list written like ``"0-3,8"``; other text gives none."""
    if not re.fullmatch(r"\s*\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*\s*", text):
        return ()
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def _parse_topology(text: str) -> Topology:
    nodes = tuple(parse_cpu_list(part) for part in text.split(";"))
    if not all(nodes) or len(nodes) > MAX_NODES:
        raise KernelError.of(
            "KT507",
            f"{TOPOLOGY_VARIABLE}={text!r} is not a list of CPUs per node",
            help=f'{TOPOLOGY_VARIABLE}="0-7;8-15", or unset it',
        )
    return Topology(nodes)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("node"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
