"""Tensors from files whose headers have been proven: the common part of both formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

from kt_core.errors import Problem
from kt_core.weights.files import WeightFile
from kt_core.weights.tensor import PackedTensor, TensorInfo
from kt_core.weights.text import error, nearest, printable


class FileSource:
    """A :class:`~kt_core.weights.WeightSource` over open files, made by the format readers."""

    def __init__(
        self,
        path: str,
        format: str,
        files: Sequence[WeightFile],
        metadata: Mapping[str, Any],
        tensors: Mapping[str, TensorInfo],
        problems: Sequence[Problem] = (),
        details: Mapping[str, int] | None = None,
    ) -> None:
        self._path = path
        self._format = format
        self._files = {file.path: file for file in files}
        self._metadata = metadata
        self._tensors = MappingProxyType(dict(tensors))
        self._stored = self._tensors
        self._readers: Mapping[str, Callable[[], PackedTensor]] = {}
        self._problems = tuple(problems)
        self.details: Mapping[str, int] = MappingProxyType(dict(details or {}))
        """What the format says about the file itself: GGUF's ``version`` and ``alignment``."""

    def __repr__(self) -> str:
        return f"<{self._format} {self._path!r}: {len(self._tensors)} tensors>"

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    @property
    def format(self) -> str:
        """``"gguf"`` or ``"safetensors"``."""
        return self._format

    @property
    def files(self) -> tuple[str, ...]:
        """The files it reads, in the order of the set."""
        return tuple(self._files)

    @property
    def file_bytes(self) -> int:
        """Size of all files together, headers and padding included."""
        return sum(file.size for file in self._files.values())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key/value metadata as Python values."""
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name, in file order."""
        return self._tensors

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Warnings and notes found at opening, such as files that were ignored."""
        return self._problems

    def tensor(self, name: str) -> PackedTensor:
        """Return a view of one tensor.

        Raises ``WeightsError`` KT410 with the nearest names if it is absent, KT426 if its file
        changed since it was opened, KT427 after :meth:`close`.
        """
        info = self._tensors.get(name)
        if info is None:
            raise self._absent(name)
        reader = self._readers.get(name)
        return self._view(info) if reader is None else reader()

    def stored(self, name: str) -> PackedTensor | None:
        """Return a view of what lies in the file under ``name``, whatever replaced it."""
        info = self._stored.get(name)
        return None if info is None else self._view(info)

    def replace_tensors(
        self,
        made: Mapping[str, tuple[TensorInfo, Callable[[], PackedTensor]]],
        hidden: Sequence[str],
    ) -> None:
        """Show ``made`` in the place of the stored names that are its keys, and hide others.

        Their readers are called whenever a tensor is asked for.
        """
        names = {
            name: made[name][0] if name in made else info for name, info in self._tensors.items()
        }
        gone = set(hidden)
        left = [info for name, info in names.items() if name not in gone]
        self._tensors = MappingProxyType({info.name: info for info in left})
        self._readers = {info.name: reader for info, reader in made.values()}

    def _view(self, info: TensorInfo) -> PackedTensor:
        data = self._files[info.file].view(info.offset, info.nbytes)
        return PackedTensor(info.name, info.shape, info.type, data.reshape(info.packed_shape))

    def found_in(self, folder: str, note: Problem | None) -> None:
        """Remember that ``folder`` was given and what in it was left aside."""
        self._path = folder
        if note is not None:
            self._problems = (*self._problems, note)

    def close(self) -> None:
        """Release the files. Views handed out stay valid until they are collected."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _absent(self, name: str) -> Exception:
        near = nearest(name, self._tensors)
        return error(
            "KT410",
            self._path,
            f'has no tensor "{printable(name)}"',
            facts=(
                f"wanted: {printable(name)}",
                f"nearest of {len(self._tensors)} present: {', '.join(near) or 'none'}",
            ),
            help=f"kt inspect --tensors {printable(self._path, 4096)}",
        )
