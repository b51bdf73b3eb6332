"""Choose a rule file for a model by the ``architectures`` that the files name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from kt_core.errors import Problem, RuleError, Severity
from kt_core.rules import devices
from kt_core.rules.fields import PLACEMENT_KWARGS
from kt_core.rules.limits import MAX_BYTES
from kt_core.rules.load import SUFFIXES, check_text
from kt_core.rules.model import RuleSet
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import listed

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

_OWN = "kt-core"
# Of several files for a GPU: experts on the CPU where the family has any, else all on the GPU.
_PREFERRED = {"cuda": ("hybrid", "gpu")}


@dataclass(frozen=True)
class RuleFile:
    """A rule file that came with a distribution. ``name`` is what messages call it."""

    name: str
    distribution: str
    variant: str
    architectures: tuple[str, ...]
    description: str
    devices: frozenset[str]
    """Device types its rules name."""
    text: bytes


def select_rules(
    architectures: str | Sequence[str] | None,
    variant: str | None = None,
    device: str | None = None,
    registry: Registry | None = None,
) -> RuleSet:
    """Return the checked rules meant for a model of one of ``architectures``.

    ``variant`` is the file's name without its ending (``"cpu"``). Without it, a file is taken that
    places modules on ``device`` (``"cuda:0"``) and nowhere else but the CPU, or names no device at
    all; of several, the one called like the device (for a GPU ``hybrid``, else ``gpu``), then one
    shipped with kt.

    Raises:
        RuleError: KT160 if no file names the architecture, KT161 if several fit equally, KT162 if
            none fits the variant or the device; or what is wrong in the chosen file.
    """
    wanted = [architectures] if isinstance(architectures, str) else list(architectures or ())
    files = available_rules(registry)
    meant = [file for file in files if set(file.architectures) & set(wanted)]
    if not meant:
        raise RuleError(_no_file(wanted, files))
    fitting = _of_variant(meant, variant) if variant is not None else _of_device(meant, device)
    if not fitting:
        raise RuleError(_none_fits(wanted, meant, variant, device))
    if len(fitting) > 1:
        raise RuleError(_several(wanted, fitting))
    checked = check_text(fitting[0].text, fitting[0].name, registry)
    if checked.ruleset is None:
        raise RuleError(p for p in checked.problems if p.severity is Severity.ERROR)
    return checked.ruleset


def available_rules(registry: Registry | None = None) -> tuple[RuleFile, ...]:
    """Return every rule file that came with kt or a plugin and names architectures."""
    from kt_core.registry.isolated import isolated

    if registry is None:
        from kt_core.registry.registry import default_registry

        registry = default_registry()
    found = list(_shipped())
    for resource in registry.rule_files():
        plugin = next((p for p in registry.plugins if p.name == resource.plugin), None)
        # The package is a plugin's: importing it may fail, which is that plugin's loss alone.
        file, _ = isolated(lambda r=resource: resources.files(r.package).joinpath(r.path))  # type: ignore[misc]
        if file is None:
            continue
        distribution = plugin.distribution if plugin is not None else resource.plugin
        found += _read(file, str(resource), distribution)
    return tuple(found)


@cache
def _shipped() -> tuple[RuleFile, ...]:
    return tuple(
        rule_file for folder in _folders() for file, name in _yaml_files(folder, "")
        for rule_file in _read(file, f"rules/{name}", _OWN)
    )  # fmt: skip


def _folders() -> Iterator[Traversable]:
    """Where the shipped files are: beside this module; in a checkout beside the package."""
    installed = resources.files("kt_core.rules")
    here = Path(__file__).resolve().parents[2]
    yield installed
    if (here / "pyproject.toml").is_file() and not any(_yaml_files(installed, "")):
        yield here / "rules"


def _yaml_files(folder: Traversable, prefix: str) -> Iterator[tuple[Traversable, str]]:
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.name.endswith(SUFFIXES):
            yield entry, name
        elif entry.is_dir() and not entry.name.startswith(("_", ".")):
            yield from _yaml_files(entry, f"{name}/")


def _read(file: Traversable, name: str, distribution: str) -> Iterator[RuleFile]:
    """Read enough to tell what the file is for; only files with architectures count."""
    from kt_core.rules.problems import Problems
    from kt_core.rules.source import read_tree
    from kt_core.rules.structure import read_document

    try:
        text = file.read_bytes()
    except OSError:
        return
    if b"architectures" not in text or len(text) > MAX_BYTES:
        return
    problems = Problems(name)
    document = read_document(read_tree(text, problems), problems)
    kinds = {
        kind
        for draft in document.rules
        for kwarg in PLACEMENT_KWARGS
        if (kind := devices.kind_of(str((draft.kwargs or {}).get(kwarg, ""))))
    }
    stem = name.rpartition("/")[2].rpartition(".")[0]
    if document.architectures:
        yield RuleFile(
            name,
            distribution,
            stem,
            document.architectures,
            document.description,
            frozenset(kinds),
            text,
        )


def _of_variant(files: Sequence[RuleFile], variant: str) -> list[RuleFile]:
    found = [file for file in files if file.variant == variant]
    return [file for file in found if file.distribution == _OWN] or found


def _of_device(files: Sequence[RuleFile], device: str | None) -> list[RuleFile]:
    kind = devices.kind_of(device) if device is not None else None
    fitting = list(files)
    if kind is not None:
        usable = [file for file in files if file.devices <= {"cpu", kind}]
        fitting = [file for file in usable if kind in file.devices or not file.devices]
        for variant in (*_PREFERRED.get(kind, ()), kind):
            named = [file for file in fitting if file.variant == variant]
            if named:
                fitting = named
                break
    return [file for file in fitting if file.distribution == _OWN] or fitting


def _no_file(wanted: Sequence[str], files: Sequence[RuleFile]) -> Problem:
    known = sorted({name for file in files for name in file.architectures})
    near = next(filter(None, (did_you_mean(name, known) for name in wanted)), None)
    what = listed(wanted) or "a model that names no architecture"
    return Problem(
        "KT160",
        f"there is no rule file for {what}",
        facts=(
            f"there are rule files for: {listed(known, most=40) or 'no architecture'}",
            *((f"nearest: {near}",) if near else ()),
        ),
        help="name a rule file with --rules FILE, or keep every module as it is: --rules none",
    )


def _none_fits(
    wanted: Sequence[str], meant: Sequence[RuleFile], variant: str | None, device: str | None
) -> Problem:
    near = did_you_mean(variant, [file.variant for file in meant]) if variant else None
    first = meant[0]
    kind = devices.kind_of(device) if device is not None else None
    if variant is None and kind not in (None, "cpu", "cuda"):
        return _no_plugin(wanted, str(device), str(kind), meant)
    return Problem(
        "KT162",
        f'no rule file for {listed(wanted)} is called "{variant}"'
        if variant is not None
        else f"no rule file for {listed(wanted)} is made for {device}",
        facts=tuple(_describe(meant)),
        help=f"--rules {near or first.variant}, or name a file: --rules FILE",
    )


def _no_plugin(wanted: Sequence[str], device: str, kind: str, meant: Sequence[RuleFile]) -> Problem:
    """Of devices that none of our distributions computes on, only torch's own kernels are there."""
    return Problem(
        "KT162",
        f"no rule file for {listed(wanted)} is made for {device}: a plugin that brings kernels and "
        f"rule files for {kind} is missing",
        facts=(
            *_describe(meant),
            f"on {kind} there are torch's own kernels, on dequantised weights",
        ),
        help=f"install such a plugin, or write a file for torch's: kt rules new --device {device}",
    )


def _several(wanted: Sequence[str], fitting: Sequence[RuleFile]) -> Problem:
    return Problem(
        "KT161",
        f"several rule files fit {listed(wanted)}",
        facts=tuple(_describe(fitting)),
        help="choose one with --rules FILE",
    )


def _describe(files: Iterable[RuleFile]) -> Iterator[str]:
    for file in files:
        where = f", on {listed(sorted(file.devices))}" if file.devices else ""
        text = f": {file.description}" if file.description else ""
        yield f"{file.name} ({file.distribution}{where}){text}"
