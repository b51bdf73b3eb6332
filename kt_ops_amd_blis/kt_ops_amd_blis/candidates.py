"""Where BLIS may be: the places, in order, and the files in them."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_PATTERNS = ("libblis-mt*.so*", "libblis*.so*", "libaocl-dlp*.so*")
"""BLIS with OpenMP, any other BLIS, and AOCL-DLP, its successor for low-precision products."""

_LIBRARY_FOLDERS = ("", "lib", "lib64", "lib_ILP64", "lib_LP64", "lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Candidate:
    """A file to look at. ``origin`` says in the user's terms why it is considered."""

    path: Path
    origin: str


class Search:
    """Iterate over the files to consider, best first; ``places`` then holds where it looked.

    Places are opened only when the ones before them had nothing usable. ``KT_BLIS_LIBRARY`` and
    ``KT_BLIS_ROOT`` are orders: with either set nothing else is considered, so that a library one
    has asked for is never replaced by another without a word. ``system_root`` is where the file
    system begins.
    """

    def __init__(self, environ: Mapping[str, str], system_root: Path = Path("/")) -> None:
        self._environ = environ
        self._root = system_root
        self.places: list[str] = []

    def __iter__(self) -> Iterator[Candidate]:
        """Yield each file once, under the first place that has it."""
        seen: set[Path] = set()
        self.places.clear()
        for origin, files in _places(self._environ, self._root):
            self.places.append(origin)
            for path in files:
                key = _resolved(path)
                if key not in seen:
                    seen.add(key)
                    yield Candidate(path, origin)


def _places(environ: Mapping[str, str], root: Path) -> Iterator[tuple[str, list[Path]]]:
    library = environ.get("KT_BLIS_LIBRARY", "")
    if library:
        yield f"KT_BLIS_LIBRARY={library}", [Path(library)]
        return
    own_root = environ.get("KT_BLIS_ROOT", "")
    if own_root:
        yield f"KT_BLIS_ROOT={own_root}", _in_prefix(Path(own_root))
        return
    for variable in ("BLIS_ROOT", "CPUINFER_BLIS_ROOT"):
        if environ.get(variable):
            yield f"{variable}={environ[variable]}", _in_prefix(Path(environ[variable]))
    yield "the aoclda package", _in_wheel(tuple(sys.path))
    for prefix in ("usr/local", "usr"):
        yield f"/{prefix}", _in_prefix(root / prefix)
    yield "the loader's path", _on_loader_path(environ, root)


def _in_prefix(prefix: Path) -> list[Path]:
    return [path for name in _LIBRARY_FOLDERS for path in _in_folder(prefix / name)]


def _in_folder(folder: Path) -> list[Path]:
    """Return the libraries of a folder, and of Debian's ``blis-openmp`` and the like below it."""
    files: list[Path] = []
    for pattern in FILE_PATTERNS:
        for below in ("", "blis-*/"):
            try:
                files += sorted(folder.glob(below + pattern))
            except OSError:
                continue  # not ours to read: nothing there that could be loaded either
    return files


@functools.lru_cache(maxsize=8)
def _in_wheel(_path: tuple[str, ...]) -> list[Path]:
    """``aoclda`` keeps its libraries, BLIS and the OpenMP runtime among them, in ``aoclda.libs``."""
    try:
        distribution = importlib.metadata.distribution("aoclda")
    except importlib.metadata.PackageNotFoundError:
        return []
    return _in_folder(Path(str(distribution.locate_file("aoclda.libs"))))


def _on_loader_path(environ: Mapping[str, str], root: Path) -> list[Path]:
    folders = [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    configured = sorted((root / "etc/ld.so.conf.d").glob("*.conf"))
    for file in (root / "etc/ld.so.conf", *configured):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        folders += [root / line.strip().lstrip("/") for line in lines if line.startswith("/")]
    return [path for folder in folders for path in _in_folder(folder)]


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of links; judged as it is named
        return path
