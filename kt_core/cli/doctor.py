"""Show what this machine and this installation offer; exit 3 if the installation is wrong."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kt_core.cli import exit_codes
from kt_core.cli.output import table, write, write_json
from kt_core.units import human_bytes

if TYPE_CHECKING:
    from kt_core.errors import Problem
    from kt_core.registry.registry import Registry

FLAGS_OF_INTEREST = (
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vbmi",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
)
"""CPU flags that kernels choose by, in ``/proc/cpuinfo``'s spelling."""

DEVICE_SECONDS = 60.0
"""How long torch may take to start and to name its devices."""

USUAL_DEVICES = ("cpu", "cuda")
"""Devices whose absence is worth a line."""

_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kt doctor``."""
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Print the report; exit 3 if a plugin is broken or a package is outside its range."""
    from kt_core.registry.registry import default_registry

    registry = default_registry()
    problems = [*registry.problems(), *_package_problems()]
    report = examine(registry, os.environ, problems)
    if args.format == "json":
        write_json(report)
    else:
        write("\n".join(_text(report)))
    return exit_codes.exit_code(problems)


def examine(
    registry: Registry, environ: Mapping[str, str], problems: list[Problem]
) -> dict[str, Any]:
    """Return everything the report says, as plain data."""
    import platform
    import sys

    from kt_core import __version__
    from kt_core.registry import machine

    cpus = machine.affinity()
    memory = machine.memory()
    gpus, no_gpu = machine.gpus()
    return {
        "kt": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "os": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "packages": _packages(),
        "cpu": {
            "model": machine.cpu_model(),
            "logical_cores": machine.logical_cores(),
            "physical_cores": machine.physical_cores(),
            "affinity": None if cpus is None else len(cpus),
            "quota": machine.cpu_quota(),
            "threads": machine.effective_threads(),
            "flags": _flags(environ),
        },
        "memory": {
            "total": memory.total,
            "available": memory.available,
            "limit": memory.limit,
        },
        **_devices(environ),
        "gpus": [vars(gpu) for gpu in gpus],
        "no_gpu": no_gpu or None,
        "plugins": _plugins(registry),
        "kernels": _kernels(registry),
        "environment": _environment(environ),
        "notes": list(_notes(environ)),
        "problems": [problem.to_json() for problem in problems],
    }


def _devices(environ: Mapping[str, str]) -> dict[str, Any]:
    """What torch sees, and why it sees nothing of a kind; asked in a process of its own."""
    import json
    import subprocess
    import sys

    from kt_core.registry.packages import installed_version

    nothing: dict[str, Any] = {"devices": [], "no_devices": {}}
    if installed_version("torch") is None:
        return nothing
    command = [sys.executable, "-m", "kt_core.devices"]
    said: list[str] = []
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=DEVICE_SECONDS,
            check=False,
            env=dict(environ),
        )
        said = done.stderr.strip().splitlines()
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        reason = f"torch gave no answer within {DEVICE_SECONDS:g} s"
    except (OSError, ValueError) as error:
        reason = said[-1] if said else f"torch cannot be asked: {error}"
    else:
        return found
    return {**nothing, "no_devices": {"all": reason}}


def _packages() -> dict[str, str | None]:
    from kt_core.registry.packages import installed_version

    names = ("torch", "transformers", "gguf", "numpy", "pluggy", "safetensors", "tokenizers")
    return {name: installed_version(name) for name in names}


def _package_problems() -> list[Problem]:
    from kt_core.registry.packages import out_of_range

    return out_of_range()


def _flags(environ: Mapping[str, str]) -> list[str]:
    from kt_core.registry.environment import probe_env

    present = probe_env("cpu", environ).cpu_flags
    return [flag for flag in FLAGS_OF_INTEREST if flag in present]


def _plugins(registry: Registry) -> list[dict[str, Any]]:
    from kt_core.cli.plugins import as_json

    keys = ("name", "distribution", "version", "state", "notes")
    # In another process, as the probes: a report that crashes must not take this one with it.
    reports = registry.report_each(registry.plugins)
    return [
        {key: value for key, value in as_json(record).items() if key in keys}
        | {"report": list(report)}
        for record, report in zip(registry.plugins, reports, strict=True)
    ]


def _kernels(registry: Registry) -> list[dict[str, Any]]:
    """Return the probe of every kernel for every usual device it names, and others that work."""
    from kt_core.registry.specs import Accepted

    rows = []
    pairs = [(found, device) for found in registry.kernels() for device in found.spec.devices]
    results = registry.probe_each([(found.spec, device) for found, device in pairs])
    for (found, device), result in zip(pairs, results, strict=True):
        accepted = isinstance(result, Accepted)
        if not accepted and device not in USUAL_DEVICES:
            continue
        rows.append(
            {
                "name": found.spec.name,
                "kind": found.spec.kind,
                "device": device,
                "accepted": accepted,
                "detail": result.detail if isinstance(result, Accepted) else "",
                "reasons": [] if isinstance(result, Accepted) else list(result.reasons),
                "help": "" if isinstance(result, Accepted) else result.help,
            }
        )
    return rows


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that concern kt; what looks like a secret is not shown."""
    return {
        key: "(set)" if any(word in key for word in _SECRET) else value
        for key, value in sorted(environ.items())
        if key.startswith(("KT_", "CPUINFER_")) or key == "CUDA_VISIBLE_DEVICES"
    }


def _notes(environ: Mapping[str, str]) -> Iterator[str]:
    from kt_core.registry.packages import installed_version

    if installed_version("torch") is None:
        yield (
            "torch is not installed: kt validates, inspects and lists, but cannot run a model; "
            'pip install "kt-core[torch]"'
        )
    elif installed_version("transformers") is None:
        yield 'transformers is not installed, so no model can run; pip install "kt-core[torch]"'
    if environ.get("CPUINFER_ENABLE_BLIS"):
        yield (
            "CPUINFER_ENABLE_BLIS is a build switch of KTransformers and has no effect on kt; "
            "AMD BLIS comes with pip install kt-ops-amd-blis"
        )


def _text(report: Mapping[str, Any]) -> Iterator[str]:
    cpu, memory = report["cpu"], report["memory"]
    packages = ", ".join(f"{n} {v}" for n, v in report["packages"].items() if v is not None)
    cores = [f"{cpu['physical_cores'] or '?'} physical, {cpu['logical_cores']} logical"]
    cores += [f"affinity {cpu['affinity']}"] if cpu["affinity"] is not None else []
    cores += [f"quota {cpu['quota']:g}" if cpu["quota"] is not None else "no quota"]
    cores += [f"{cpu['threads']} threads for kernels"]
    sizes = [f"{human_bytes(memory[key])} {key}" for key in memory if memory[key] is not None]
    yield table(
        [
            ("kt", report["kt"]),
            ("Python", f"{report['python']['version']} ({report['python']['executable']})"),
            ("packages", packages),
            ("system", report["os"]),
            ("CPU", cpu["model"]),
            ("flags", " ".join(cpu["flags"]) or "none of those that kernels look for"),
            ("cores", ", ".join(cores)),
            ("memory", ", ".join(sizes) or "unknown"),
            *_gpu_rows(report),
        ]
    )
    rows = list(_device_rows(report))
    if rows:
        yield "\ndevices"
        yield table(rows, indent=2)
    yield "\nplugins"
    for plugin in report["plugins"]:
        label = f"{plugin['distribution']} {plugin['version']}".strip()
        yield f"  {plugin['name']} ({label}): {plugin['state']}"
        yield from (f"    {line}" for line in plugin["report"])
        yield from (f"    note: {note}" for note in plugin["notes"])
    if report["kernels"]:
        yield "\nkernels"
        yield table([_kernel_row(row) for row in report["kernels"]], indent=2)
    if report["environment"]:
        yield "\nenvironment"
        yield from (f"  {key}={value}" for key, value in report["environment"].items())
    yield from (f"\nnote: {note}" for note in report["notes"])
    yield from _problem_lines(report["problems"])


def _device_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for device in report["devices"]:
        vendor = "" if device["vendor"] == "unknown" else str(device["vendor"])
        sizes = [
            f"{human_bytes(device[key])}{word}"
            for key, word in (("memory", ""), ("memory_free", " free"))
            if device[key] is not None
        ]
        said = ", ".join(part for part in (device["title"], *sizes, device["detail"]) if part)
        yield device["name"], vendor, said
    for kind, reason in report["no_devices"].items():
        yield kind, "", f"none: {reason}"


def _gpu_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for gpu in report["gpus"]:
        size = human_bytes(gpu["memory"]) if gpu["memory"] else "memory unknown"
        free = f" ({human_bytes(gpu['memory_free'])} free)" if gpu["memory_free"] else ""
        capability, driver = gpu["capability"], gpu["driver"]
        yield (
            f"GPU {gpu['index']}",
            f"{gpu['name']}, {size}{free}, capability {capability}, driver {driver}",
        )
    if not report["gpus"]:
        yield "GPU", f"none: {report['no_gpu']}"


def _kernel_row(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if row["accepted"]:
        said = f"ok ({row['detail']})" if row["detail"] else "ok"
    else:
        said = f"no: {'; '.join(row['reasons'])}"
    return row["name"], row["device"], said


def _problem_lines(problems: list[dict[str, Any]]) -> Iterator[str]:
    for problem in problems:
        yield f"\n{problem['code']} {problem['message']}"
        yield from (f"  {fact}" for fact in problem["facts"])
        if problem["help"]:
            yield f"  help: {problem['help']}"
    yield "\n" + (f"{len(problems)} problem(s)" if problems else "no problems found")
