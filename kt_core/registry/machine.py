"""Facts about this machine that need no library: cores, quotas, memory, GPUs.

Every function reads files of the kernel or asks the system; where a fact cannot be had the answer
is ``None``, never a guess. ``root`` is where the file system begins, so that tests can bring their
own.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kt_core.registry.environment import sysctl

ROOT = Path("/")


@dataclass(frozen=True)
class Memory:
    """Bytes of main memory. ``limit`` is the control group's, where there is one."""

    total: int | None
    available: int | None
    limit: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver describes it; memory in bytes."""

    index: int
    name: str
    memory: int | None
    memory_free: int | None
    driver: str
    capability: str


def cpu_model(root: Path = ROOT) -> str:
    """Return the CPU's name as the system gives it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    if found:
        return found.group(1).strip()
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string").rstrip(b"\0").decode("utf-8", "replace")
    return platform.processor() or platform.machine()


def logical_cores() -> int:
    """Return the number of logical processors of the machine."""
    return os.cpu_count() or 1


def affinity() -> frozenset[int] | None:
    """Return the logical processors that this process may run on, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return None


def physical_cores(cpus: frozenset[int] | None = None, root: Path = ROOT) -> int | None:
    """Return the number of physical cores (that ``cpus`` belong to)."""
    if sys.platform == "darwin":
        raw = sysctl("hw.physicalcpu")
        return int.from_bytes(raw, sys.byteorder) if raw else None
    cores = set()
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        number = int(folder.parent.name.removeprefix("cpu"))
        if cpus is None or number in cpus:
            package = _read(folder / "physical_package_id").strip()
            cores.add((package, _read(folder / "core_id").strip()))
    return len(cores) or None


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the control group's CPU quota in processors, the least of all levels."""
    quotas = []
    for text in _cgroup_files("cpu.max", root):  # version 2: "max 100000" or "150000 100000"
        words = text.split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    periods = _cgroup_files("cpu.cfs_period_us", root, "cpu")
    for text, period in zip(_cgroup_files("cpu.cfs_quota_us", root, "cpu"), periods, strict=False):
        if text.strip().isdecimal() and period.strip().isdecimal() and int(period):
            quotas.append(int(text) / int(period))
    return min(quotas, default=None)


def effective_threads(root: Path = ROOT) -> int:
    """Return how many threads compute well here: affinity, quota and physical cores, the least."""
    cpus = affinity()
    limits = [len(cpus) if cpus else logical_cores()]
    quota, cores = cpu_quota(root), physical_cores(cpus, root)
    limits += [max(1, math.floor(quota))] if quota is not None else []
    limits += [cores] if cores is not None else []
    return min(limits)


def memory(root: Path = ROOT) -> Memory:
    """Return what memory there is and how much of it this process may take."""
    kib = {
        key: int(value) * 1024
        for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.M)
    }
    limits = [
        int(text)
        for text in (
            *_cgroup_files("memory.max", root),
            *_cgroup_files("memory.limit_in_bytes", root, "memory"),
        )
        if text.strip().isdecimal() and int(text) < 1 << 60  # version 1 writes "none" like that
    ]
    total = kib.get("MemTotal")
    if total is None and sys.platform == "darwin":
        total = int.from_bytes(sysctl("hw.memsize"), sys.byteorder) or None
    return Memory(total, kib.get("MemAvailable"), min(limits, default=None))


def gpus(timeout: float = 5.0) -> tuple[list[Gpu], str]:
    """Return NVIDIA's GPUs, and a reason when there are none or they could not be asked.

    ``nvidia-smi`` runs for at most ``timeout`` seconds: with a hung driver it never returns.
    """
    fields = "index,name,memory.total,memory.free,driver_version,compute_cap"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, errors="replace"
        )
    except FileNotFoundError:
        return [], "nvidia-smi is not installed"
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi gave no answer within {timeout:g} s"
    except OSError as error:
        return [], f"nvidia-smi cannot be run: {error.strerror or error}"
    if done.returncode != 0:
        return [], f"nvidia-smi: {(done.stderr or done.stdout).strip() or done.returncode}"
    found = [gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None]
    return found, "" if found else "nvidia-smi lists no GPU"


def _gpu(line: str) -> Gpu | None:
    words = [word.strip() for word in line.split(",")]
    if len(words) != 6 or not words[0].isdecimal():
        return None
    total, free = (int(w) * 1024 * 1024 if w.isdecimal() else None for w in words[2:4])
    return Gpu(int(words[0]), words[1], total, free, words[4], words[5])


def _cgroup_files(name: str, root: Path, controller: str = "") -> list[str]:
    """Return the file ``name`` of this process' control group and of all groups above it."""
    texts = []
    for folder in _cgroup_folders(root, controller):
        text = _read(folder / name)
        if text:
            texts.append(text)
    return texts


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield group folders from the innermost outwards. No ``controller`` means version 2."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller not in names.split(","):
            continue
        top = base / controller if controller else base
        # In a container the path may lead above the mount; then the mount itself is the group.
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            parts = []
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
