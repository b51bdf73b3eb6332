"""Registries and plugins for tests: in memory, or as throw-away distributions on disk.

In memory::

    toy = fake_plugin("toy", kernels=[kernel_spec("kt_toy.linear")])
    registry = fake_registry(toy)

On disk, for everything that depends on how plugins are found and imported: write a distribution
into a folder and put that folder on the path of a child process::

    write_distribution(tmp_path, "kt-toy", plugins={"toy": "kt_toy.plugin"},
                       files={"kt_toy/plugin.py": "KT_PLUGIN_API = 1"})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kt_core.registry.candidates import Candidate
from kt_core.registry.hookspecs import ENTRY_POINT_GROUP, hookimpl
from kt_core.registry.registry import Registry, core_candidate
from kt_core.registry.specs import (
    LINEAR,
    PLUGIN_API,
    AliasSpec,
    ArchitectureSpec,
    CommandSpec,
    KernelSpec,
    OperatorSpec,
    ProbeEnv,
    ProbeResult,
)

Probe = Callable[[OperatorSpec | KernelSpec, ProbeEnv], ProbeResult | None]


def operator_spec(name: str, **fields: Any) -> OperatorSpec:
    """Return a valid operator spec; ``fields`` replace what it says by default."""
    package = name.partition(".")[0]
    return OperatorSpec(
        **{"name": name, "target": f"{package}.ops:Operator", "summary": "A test's.", **fields}
    )


def kernel_spec(name: str, **fields: Any) -> KernelSpec:
    """Return a valid spec of a linear CPU kernel; ``fields`` replace what it says by default."""
    package = name.partition(".")[0]
    defaults: dict[str, Any] = {
        "name": name,
        "target": f"{package}.kernels:Kernel",
        "kind": LINEAR,
        "devices": ("cpu",),
        "weight_formats": ("*",),
        "summary": "A test's.",
    }
    return KernelSpec(**{**defaults, **fields})


def fake_plugin(
    name: str = "toy",
    *,
    operators: Iterable[OperatorSpec] = (),
    kernels: Iterable[KernelSpec] = (),
    rules: Iterable[str] = (),
    aliases: Iterable[AliasSpec] = (),
    architectures: Iterable[ArchitectureSpec] = (),
    commands: Iterable[CommandSpec] = (),
    probe: Probe | None = None,
    report: Callable[[ProbeEnv], Iterable[str]] | None = None,
    distribution: str | None = None,
    version: str = "1.0",
    package: str | None = None,
    api: object = PLUGIN_API,
) -> Candidate:
    """Return a plugin that can be given to ``Registry.of`` or :func:`fake_registry`.

    It poses as distribution ``kt-NAME`` with the import package ``kt_NAME`` unless told otherwise.
    """

    @hookimpl
    def kt_register_operators() -> Iterable[OperatorSpec]:
        return list(operators)

    @hookimpl
    def kt_register_kernels() -> Iterable[KernelSpec]:
        return list(kernels)

    @hookimpl
    def kt_register_rules() -> Iterable[str]:
        return list(rules)

    @hookimpl
    def kt_register_aliases() -> Iterable[AliasSpec]:
        return list(aliases)

    @hookimpl
    def kt_register_architectures() -> Iterable[ArchitectureSpec]:
        return list(architectures)

    @hookimpl
    def kt_register_commands() -> Iterable[CommandSpec]:
        return list(commands)

    @hookimpl
    def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> ProbeResult | None:
        return None if probe is None else probe(spec, env)

    @hookimpl
    def kt_report(env: ProbeEnv) -> Iterable[str]:
        return () if report is None else report(env)

    module = SimpleNamespace(
        KT_PLUGIN_API=api,
        kt_register_operators=kt_register_operators,
        kt_register_kernels=kt_register_kernels,
        kt_register_rules=kt_register_rules,
        kt_register_aliases=kt_register_aliases,
        kt_register_architectures=kt_register_architectures,
        kt_register_commands=kt_register_commands,
        kt_probe=kt_probe,
        kt_report=kt_report,
    )
    word = name.replace("-", "_")
    return Candidate(
        name,
        distribution or f"kt-{name}",
        version,
        f"kt_{word}.plugin",
        f"kt_{word}" if package is None else package,
        lambda: module,
    )


def fake_registry(
    *plugins: object, core: bool = True, environ: Mapping[str, str] | None = None
) -> Registry:
    """Return a registry of the core's plugin (unless ``core`` is false) and ``plugins``.

    Nothing installed is looked at. ``environ`` stands for the environment that probes see.
    """
    own = [core_candidate()] if core else []
    return Registry.of(*own, *plugins, environ=environ)


def write_distribution(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    plugins: Mapping[str, str],
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write an installed distribution into ``folder``, as pip leaves it, and return its metadata.

    ``plugins`` maps entry point names to values (``"kt_toy.plugin"``), ``files`` relative paths to
    the text of modules; ``__init__.py`` files are added where they are missing.
    """
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "".join(f"{point} = {value}\n" for point, value in plugins.items())
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{points}")
    for path, text in (files or {}).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        for parent in Path(path).parents:
            if parent.name and not (folder / parent / "__init__.py").exists():
                (folder / parent / "__init__.py").write_text("")
    return metadata
