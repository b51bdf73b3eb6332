"""Which files of a folder are the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kt_core.errors import Problem, Severity
from kt_core.weights.gguf_source import SPLIT_NAME
from kt_core.weights.safetensors_source import INDEX_SUFFIX, SHARD_NAME
from kt_core.weights.sniff import CONVERT
from kt_core.weights.text import error, printable, problem

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHOWN = 10
_DEPTH = 3  # how far below a folder without weights we look for the one that was meant
_FOLDERS = 2000  # and in how many


@dataclass(frozen=True)
class Found:
    """The file that opens a folder's model, its format, and the weight files that may be aside."""

    path: str
    format: str
    aside: tuple[str, ...]


@dataclass
class _Listing:
    """Names in a folder by kind; models map what a user would call one to its first file."""

    gguf: dict[str, str]
    safetensors: dict[str, str]
    weight_files: list[str]
    pickles: list[str]
    total: int


def find_model(folder: str, format: str | None) -> Found:
    """Return the one model in ``folder``; its sub-folders are never searched.

    GGUF wins over safetensors unless ``format`` says otherwise; what is left aside is noted. Raises
    ``WeightsError`` KT403 if there is none, KT404 if there are several.
    """
    listing = _list(folder)
    for kind, models in (("gguf", listing.gguf), ("safetensors", listing.safetensors)):
        if format not in (None, kind) or not models:
            continue
        if len(models) > 1:
            raise error(
                "KT404",
                folder,
                f"holds {len(models)} {kind} models; name one of them",
                facts=_some(f"model: {printable(name)}" for name in models),
                help="kt inspect " + printable(os.path.join(folder, next(iter(models.values())))),
            )
        first = next(iter(models.values()))
        return Found(os.path.join(folder, first), kind, tuple(listing.weight_files))
    raise _nothing(folder, listing, format)


def _list(folder: str) -> _Listing:
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as cause:
        raise error("KT401", folder, f"cannot be listed: {cause.strerror}") from cause
    files = [name for name, is_folder in found if not is_folder]
    return _Listing(
        _gguf_models(files),
        _safetensors_models(files),
        [name for name in files if name.lower().endswith((".gguf", ".safetensors"))],
        [name for name in files if name.lower().endswith(_PICKLES)],
        len(found),
    )


def _gguf_models(files: Sequence[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for name in files:
        # "mmproj" is a vision tower that is published beside its model.
        if name.lower().endswith(".gguf") and not name.lower().startswith("mmproj"):
            match = SPLIT_NAME.fullmatch(name)
            label = f"{match['stem']} ({int(match['count'])} parts)" if match else name
            models.setdefault(label, name)
    return models


def _safetensors_models(files: Sequence[str]) -> dict[str, str]:
    """Prefer the index, then ``model.safetensors``, as every writer of these folders means it."""
    for preferred in ("model" + INDEX_SUFFIX, "model.safetensors"):
        if preferred in files:
            return {preferred: preferred}
    models = {name: name for name in files if name.endswith(INDEX_SUFFIX)}
    stems = {name.removesuffix(INDEX_SUFFIX) for name in models}
    for name in files:
        match = SHARD_NAME.fullmatch(name)
        if name.endswith(".safetensors") and not (match and match["stem"] in stems):
            label = f"{match['stem']} ({int(match['count'])} parts)" if match else name
            models.setdefault(label, name)
    return models


def note_ignored(folder: str, found: Found, used: Iterable[str]) -> Problem | None:
    """Return the note that names the weight files of ``folder`` that were not opened, if any."""
    opened = {os.path.basename(path) for path in used}
    names = [name for name in found.aside if name not in opened]
    if not names:
        return None
    return problem(
        "KT440",
        folder,
        f"{printable(os.path.basename(found.path))} is loaded; "
        f"{len(names)} other weight files are ignored",
        facts=_some(f"ignored: {printable(name)}" for name in names),
        severity=Severity.NOTE,
        help="name the file itself, or give format=, to load something else",
    )


def _nothing(folder: str, listing: _Listing, format: str | None) -> Exception:
    wanted = f"{format} file" if format else "GGUF or safetensors file"
    if listing.pickles:
        return error(
            "KT406",
            folder,
            f"holds no {wanted}, only pickles",
            facts=_some(f"not opened: {printable(name)}" for name in listing.pickles),
            help=CONVERT,
        )
    below = _folders_with_weights(folder)
    if below:
        return error(
            "KT403",
            folder,
            f"holds no {wanted} itself, but {len(below)} folders below it do",
            facts=_some(f"folder: {printable(path)}" for path in below),
            help=f"kt inspect {printable(below[0], 4096)}",
        )
    return error(
        "KT403",
        folder,
        f"holds no {wanted}" if listing.total else "is an empty folder",
        facts=(f"files in it: {listing.total}",) if listing.total else (),
        help="give the .gguf or .safetensors file, or the folder that holds it",
    )


def _folders_with_weights(folder: str) -> list[str]:
    """Look below ``folder``, nearest first, to say which folder may have been meant."""
    found = []
    queue = [(folder, 0)]
    for path, depth in queue:  # grows while it is walked, up to a bound
        try:
            with os.scandir(path) as entries:
                inside = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries
                )
        except OSError:
            continue
        if any(name.lower().endswith((".gguf", ".safetensors")) for name, _ in inside):
            found.append(path)
        if depth < _DEPTH:
            below = [os.path.join(path, name) for name, is_folder in inside if is_folder]
            queue += [(each, depth + 1) for each in below[: max(0, _FOLDERS - len(queue))]]
    return found


def _some(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    more = len(every) - _SHOWN
    return every if more <= 0 else [*every[:_SHOWN], f"and {more} more"]
