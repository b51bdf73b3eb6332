"""Judge every BLIS that could be meant: which one is used, and why the others are not.

Nothing here imports torch or loads a library into this process. A file is judged by its symbol
table first; only one that has LPGEMM is loaded, by :mod:`examine` in another process, once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kt_ops_amd_blis import elf
from kt_ops_amd_blis.candidates import Candidate, Search
from kt_ops_amd_blis.examine import REQUIRED

REQUIRED_FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni")
"""CPU flags of BLIS's s8 kernels and of this package's own. Without VNNI BLIS prints a line, computes
nothing and returns."""

_EXAMINE_SECONDS = 20.0

# Of several libraries that cannot be used, the one that came furthest says what to do.
_FURTHEST = ("KT536", "KT535", "KT534", "KT532", "KT531")

INSTALL = 'pip install "kt-ops-amd-blis[aocl]"'
HELP: Mapping[str, str] = {
    "KT530": "use a rule file whose kernels run here; kt doctor lists them",
    "KT531": f"{INSTALL}, or point KT_BLIS_LIBRARY at AMD's libblis",
    "KT532": f"{INSTALL}, or point KT_BLIS_LIBRARY at a BLIS built with the aocl_gemm add-on",
    "KT533": "name another kernel for this CPU, such as kt_ops_cpu.experts",
    "KT534": f"{INSTALL}, or repair the library that is named",
    "KT535": f"{INSTALL}, or point KT_BLIS_LIBRARY at a BLIS built with 64-bit integers",
    "KT536": "unset AOCL_ENABLE_INSTRUCTIONS and BLIS_ARCH_TYPE if they are set; " + INSTALL,
}
"""The way out for each code a verdict can have."""


@dataclass(frozen=True)
class Facts:
    """What a usable library says about itself.

    ``preload``: files it needs that lie beside it. ``groups``: its products with group scales work.
    """

    version: str
    threading: str
    preload: tuple[Path, ...]
    groups: bool


@dataclass(frozen=True)
class Verdict:
    """``code`` and ``reason`` are empty for a library that can be used; ``facts`` is set then."""

    path: Path
    origin: str
    code: str = ""
    reason: str = ""
    facts: Facts | None = None

    def line(self) -> str:
        """Return one line for a report."""
        if self.facts is not None:
            return f"{self.path}: {self.facts.version} (from {self.origin})"
        return f"{self.path} {self.reason}"


@dataclass(frozen=True)
class Finding:
    """The outcome of a search: the first usable verdict, or a code and reasons."""

    chosen: Verdict | None
    verdicts: tuple[Verdict, ...]
    code: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """What to change, one line."""
        return HELP.get(self.code, "")


def missing_flags(cpu_flags: frozenset[str]) -> tuple[str, ...]:
    """Return the CPU flags that are needed and absent."""
    return tuple(flag for flag in REQUIRED_FLAGS if flag not in cpu_flags)


def search(
    environ: Mapping[str, str], cpu_flags: frozenset[str], system_root: Path = Path("/")
) -> Finding:
    """Find the BLIS to use. The CPU is asked first: without VNNI no library is even looked for."""
    if sys.platform != "linux":
        return Finding(None, (), "KT530", ("AMD BLIS with LPGEMM exists for Linux on x86-64 only",))
    absent = missing_flags(cpu_flags)
    if absent:
        reason = f"this CPU lacks {', '.join(absent)}; AMD BLIS computes int8 with AVX512-VNNI only"
        return Finding(None, (), "KT533", (reason,))
    files = Search(environ, system_root)
    verdicts: list[Verdict] = []
    for candidate in files:
        verdict = judge(candidate, environ)
        verdicts.append(verdict)
        if verdict.facts is not None:
            return Finding(verdict, tuple(verdicts))
    if not verdicts:
        looked = f"no libblis or libaocl-dlp was found; looked in {', '.join(files.places)}"
        return Finding(None, (), "KT531", (looked,))
    code = min((verdict.code for verdict in verdicts), key=_FURTHEST.index)
    return Finding(None, tuple(verdicts), code, tuple(verdict.line() for verdict in verdicts))


def judge(candidate: Candidate, environ: Mapping[str, str]) -> Verdict:
    """Judge one file; a verdict is kept for as long as the file is the same."""
    path = candidate.path
    try:
        stat = path.stat()
    except OSError as error:
        return Verdict(path, candidate.origin, "KT531", f"does not exist ({error.strerror})")
    # What the library's own choice of instructions and the loader depend on.
    settings = tuple(
        (key, value)
        for key, value in sorted(environ.items())
        if key.startswith(("AOCL_", "BLIS_", "DLP_", "LD_"))
    )
    return _judge(path, candidate.origin, stat.st_mtime_ns, stat.st_size, settings)


@functools.lru_cache(maxsize=256)
def _judge(
    path: Path, origin: str, _mtime: int, _size: int, settings: tuple[tuple[str, str], ...]
) -> Verdict:
    try:
        library = elf.read(path, REQUIRED)
    except (elf.ElfError, OSError) as error:
        return Verdict(path, origin, "KT534", f"cannot be loaded: {error}")
    absent = [symbol for symbol in REQUIRED if symbol not in library.defined]
    if absent:
        reason = f"has no {absent[0]} (BLIS built without the aocl_gemm add-on)"
        return Verdict(path, origin, "KT532", reason)
    folder = path.resolve().parent
    preload = tuple(folder / name for name in library.needed if (folder / name).exists())
    report = _examine(path, preload, settings)
    if "error" in report:
        return Verdict(path, origin, "KT534", f"cannot be loaded: {report['error']}")
    if report["int_bits"] != 64:
        reason = f"is built for {report['int_bits']}-bit integers; this backend passes 64-bit sizes"
        return Verdict(path, origin, "KT535", reason)
    if not report["right"]:
        said = f": {report['said']}" if report["said"] else ""
        return Verdict(path, origin, "KT536", f"does not multiply int8 matrices here{said}")
    version = str(report["version"]) or "BLIS of unknown version"
    facts = Facts(version, str(report["threading"]), preload, bool(report.get("groups")))
    return Verdict(path, origin, facts=facts)


def _examine(
    path: Path, preload: tuple[Path, ...], settings: tuple[tuple[str, str], ...]
) -> dict[str, object]:
    """Load the library in another process; ``{"error": …}`` if that fails in whatever way."""
    if not sys.executable:
        return {"error": "this Python does not know its own executable, so it cannot be tried"}
    source = importlib.resources.files("kt_ops_amd_blis").joinpath("examine.py").read_text("utf-8")
    command = [sys.executable, "-I", "-S", "-c", source, str(path), *map(str, preload)]
    environ = {"PATH": os.defpath, **dict(settings)}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_EXAMINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"loading it took longer than {_EXAMINE_SECONDS:.0f} s"}
    except OSError as error:
        return {"error": f"no process could be started to try it ({error})"}
    said = " ".join(done.stderr.decode("utf-8", "replace").split())[:200]
    report: dict[str, object] = {}
    with contextlib.suppress(ValueError):  # it may have died while it wrote
        for line in done.stdout.splitlines():
            report |= json.loads(line)
    if not report:
        died = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        return {"error": f"the process that tried it ended with {died}{said and f' ({said})'}"}
    report["said"] = said
    return report
