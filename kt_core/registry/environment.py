"""What a probe may look at: CPU flags, environment variables, and whether a GPU is there at all.

Everything is read from files and cheap system calls. Nothing here imports torch, starts a GPU
context or can hang.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kt_core.registry.packages import installed_version
from kt_core.registry.specs import ProbeEnv

MASK_VARIABLE = "KT_CPU_FLAGS_MASK"
"""Comma-separated CPU flags to treat as absent; for tests and for doubtful virtual machines."""

# What other systems call the flags that Linux names in /proc/cpuinfo.
_LINUX_NAMES = {
    "avx1.0": "avx",
    "avx512_vbmi": "avx512vbmi",
    "avx512_ifma": "avx512ifma",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512vbmi2": "avx512_vbmi2",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
_WINDOWS_FEATURES = {  # arguments of IsProcessorFeaturePresent, which honours XCR0
    36: "ssse3",
    37: "sse4_1",
    38: "sse4_2",
    39: "avx",
    40: "avx2",
    41: "avx512f",
}


def probe_env(device: str, environ: Mapping[str, str] | None = None) -> ProbeEnv:
    """Return what a probe for ``device`` (``"cuda:1"`` counts as ``"cuda"``) may look at."""
    snapshot = dict(os.environ if environ is None else environ)
    masked = {flag.strip().lower() for flag in snapshot.get(MASK_VARIABLE, "").split(",")}
    return ProbeEnv(device.partition(":")[0], cpu_flags() - masked, snapshot)


@cache
def cpu_flags() -> frozenset[str]:
    """Return what CPU and operating system both support, as lower-case names in Linux' spelling.

    Linux clears flags whose registers the kernel does not save, so that its list already takes XCR0
    into account. Where a system tells less, fewer flags are returned; none is ever guessed.
    """
    readers = {"linux": _linux_flags, "darwin": _darwin_flags, "win32": _windows_flags}
    try:
        return readers.get(sys.platform, frozenset)()
    except (
        OSError,
        AttributeError,
    ):  # a system that keeps this from us supports nothing we know of
        return frozenset()


def _linux_flags() -> frozenset[str]:
    return parse_cpuinfo_flags(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))


def parse_cpuinfo_flags(text: str) -> frozenset[str]:
    """Return the flags that every processor in a ``/proc/cpuinfo`` has (big.LITTLE CPUs differ)."""
    lines = re.findall(r"^(?:flags|Features)[ \t]*:(.*)$", text, re.MULTILINE)
    if not lines:
        return frozenset()
    return frozenset.intersection(*(frozenset(line.lower().split()) for line in set(lines)))


def _darwin_flags() -> frozenset[str]:
    if platform.machine() == "arm64":
        names = ("FEAT_DotProd", "FEAT_I8MM", "FEAT_BF16", "FEAT_FP16", "FEAT_SME")
        linux = ("asimddp", "i8mm", "bf16", "asimdhp", "sme")
        present = {
            flag
            for name, flag in zip(names, linux, strict=True)
            if sysctl(f"hw.optional.arm.{name}") == b"\x01\x00\x00\x00"
        }
        return frozenset({"fp", "asimd", *present})
    words: set[str] = set()
    for key in ("features", "leaf7_features", "extfeatures"):
        words.update(sysctl(f"machdep.cpu.{key}").rstrip(b"\0").decode("ascii", "replace").split())
    return frozenset(_LINUX_NAMES.get(word.lower(), word.lower()) for word in words)


def sysctl(name: str) -> bytes:
    """Return a value of macOS' system control as raw bytes, empty if there is none."""
    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) != 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0) != 0:
        return b""
    return buffer.raw[: size.value]


def _windows_flags() -> frozenset[str]:
    kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    return frozenset(
        flag
        for number, flag in _WINDOWS_FEATURES.items()
        if kernel32.IsProcessorFeaturePresent(number)
    )


@dataclass(frozen=True)
class CudaPresence:
    """Whether torch's ``cuda`` devices can exist here; ``count`` is ``None`` where unknown."""

    count: int | None
    reason: str = ""
    help: str = ""


def torch_version() -> str | None:
    """Return the version of the installed torch with its build (``2.13.0+cpu``), or ``None``."""
    return installed_version("torch")


def cuda_presence(environ: Mapping[str, str], root: Path = Path("/")) -> CudaPresence:
    """Look for a GPU by its device files and for a torch that can use it, without touching either.

    ``root`` is where the file system begins (tests give another one).
    """
    torch = torch_version()
    if torch is not None and torch.endswith("+cpu"):
        return CudaPresence(
            0,
            f"the installed torch {torch} is built without CUDA",
            "install torch with CUDA: https://pytorch.org/get-started/locally/",
        )
    found = _gpu_files(root)
    if found == 0:
        return CudaPresence(0, "no GPU was found: there is no driver's device file")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return CudaPresence(found)
    chosen = _visible(visible)
    if not chosen:
        return CudaPresence(
            0, f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        )
    return CudaPresence(len(chosen) if found is None else min(found, len(chosen)))


def extension_missing(kind: str) -> str:
    """Return why torch cannot have ``xpu``, ``npu`` or ``mps`` devices here, empty if it may.

    Judged by the installed distributions; whether such a device is there only torch can say.
    """
    if kind == "npu":
        return "" if installed_version("torch-npu") else "torch_npu is not installed"
    if kind == "mps":
        return "" if sys.platform == "darwin" else "there is no GPU of Apple's here"
    if kind != "xpu":  # a plugin's own kind, of which only it can tell
        return ""
    torch = torch_version()
    build = (torch or "").partition("+")[2]
    # Builds from source carry a commit there and may have anything.
    if torch is not None and (build == "" or re.match(r"cpu|cu\d|rocm", build)):
        return f"the installed torch {torch} is built without {kind}"
    return ""


def _visible(text: str) -> list[str]:
    """Return the entries CUDA honours: it stops reading at the first that is not one."""
    chosen: list[str] = []
    for entry in text.split(","):
        word = entry.strip()
        if not word or word.startswith("-"):
            break
        chosen.append(word)
    return chosen


def _gpu_files(root: Path) -> int | None:
    """Return the number of GPUs the system shows; ``None`` means some, of unknown number."""
    if sys.platform == "win32":
        system = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32"
        return None if (system / "nvcuda.dll").exists() else 0
    try:
        names = [entry.name for entry in (root / "dev").iterdir()]
    except OSError:
        return 0
    nvidia = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)
    if nvidia:
        return nvidia
    # WSL shows a GPU as dxg, AMD's driver as kfd (torch for ROCm calls its devices cuda as well).
    wsl = "dxg" in names and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
    return None if wsl or "kfd" in names else 0
