"""Reordered weights on disk, so that a layer is quantised once and then read.

One file per layer, named by what it was made from. Its header names the shape, the scheme, the
library, the CPU and a digest of the layout that the library produces here: a file that differs in
any of them is refused, never used and never replaced without being told to. A file appears under
its name only when it is complete, so an interrupted conversion continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.errors import KernelError
from kt_core.operators.kernel import ExpertsShape, ExpertsWeights
from kt_core.registry.machine import cpu_model
from kt_core.weights import PackedTensor, QuantType
from kt_ops_amd_blis.library import Library
from kt_ops_amd_blis.packed import Matrices, allocate, allocate_experts, fill

SUFFIX = ".moe_int8"
_MAGIC = b"KTMOE8\r\n"
_VERSION = 1
_ALIGN = 4096
_HEADER_LIMIT = 1 << 16
_SAMPLE = 256

Bytes = npt.NDArray[np.uint8]


class ExpertsCache:
    """The file of one layer in a folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        shape: ExpertsShape,
        group: int,
        library: Library,
        weights: ExpertsWeights,
    ) -> None:
        self._name = name
        self._shape = shape
        self._group = group
        self._library = library
        self._source = fingerprint(weights)
        scheme = f".group{group}" if group else ""
        self.path = folder / f"{self._source}{scheme}{SUFFIX}"

    def read(self) -> tuple[Matrices, Matrices] | None:
        """Return the layer's matrices, or ``None`` if there is no file yet.

        Raises:
            KernelError: KT542 if the file was made for something else, KT543 if it is damaged or
                cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._damaged(str(error)) from error

    def _read(self, file: BufferedReader) -> tuple[Matrices, Matrices]:
        header = self._header(file)
        widths = (header.pop("gate_up_width", 0), header.pop("down_width", 0))
        if not all(type(width) is int and 0 < width <= 1024 for width in widths):
            raise self._damaged("its header names no chunk widths")
        expected = self._expected(widths)
        differs = [
            f"{key}: {header.get(key)!r} in the file, {value!r} here"
            for key, value in expected.items()
            if header.get(key) != value
        ]
        if differs:
            raise KernelError.of(
                "KT542",
                f"{self.path} holds weights that were reordered for something else",
                facts=[f"module: {self._name}", *differs],
                help=f"rm {self.path}",
            )
        gate_up, down = allocate_experts(
            self._library, self._shape, widths, self._group, self._name
        )
        parts = list(_parts(gate_up, down))
        size = sum(_aligned(part.nbytes) for part in parts) + file.tell()
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise self._damaged(f"it has {actual:,} bytes, not {size:,}")
        for part in parts:
            if file.readinto(part.data) != part.nbytes:
                raise self._damaged("it ended while it was read")
            file.seek(_aligned(part.nbytes) - part.nbytes, os.SEEK_CUR)
        return gate_up, down

    def _header(self, file: BufferedReader) -> dict[str, Any]:
        start = file.read(16)
        length = int.from_bytes(start[12:16], "little")
        if len(start) != 16 or start[:8] != _MAGIC or length > _HEADER_LIMIT:
            raise self._damaged("it does not begin like one of kt's MOE_INT8 files")
        version = int.from_bytes(start[8:12], "little")
        if version != _VERSION:
            raise self._damaged(f"it is of format version {version}; this is version {_VERSION}")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise self._damaged("its header cannot be read")
        file.seek(_aligned(16 + length))
        return header

    def write(self, gate_up: Matrices, down: Matrices) -> None:
        """Write the layer's file: complete under its name, or not at all.

        Raises:
            KernelError: KT543 if it cannot be written.
        """
        widths = (int(gate_up.layout.width), int(down.layout.width))
        fields = {
            **self._expected(widths),
            "gate_up_width": widths[0],
            "down_width": widths[1],
            "module": self._name,
        }
        header = json.dumps(fields).encode()
        temporary = self.path.with_name(f".partial-{os.getpid()}-{self.path.name}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    file.write(_MAGIC + _VERSION.to_bytes(4, "little"))
                    file.write(len(header).to_bytes(4, "little") + header)
                    file.write(bytes(_aligned(file.tell()) - file.tell()))
                    for part in _parts(gate_up, down):
                        file.write(part.data)
                        file.write(bytes(_aligned(part.nbytes) - part.nbytes))
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self.path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._damaged(f"it cannot be written: {error}") from error

    def _expected(self, widths: tuple[int, int]) -> dict[str, Any]:
        """Return what a file must say to be used here."""
        shape = self._shape
        return {
            "experts": shape.num_experts,
            "hidden": shape.hidden_size,
            "intermediate": shape.intermediate_size,
            "scheme": "symmetric int8",
            "group_size": self._group,
            "library": self._library.version,
            "cpu": cpu_model(),
            "layout": layout_digest(self._library, widths, self._group, shape),
            "source": self._source,
        }

    def _damaged(self, why: str) -> KernelError:
        return KernelError(
            KernelError.of(
                "KT543",
                f"{self.path} cannot be used: {why}",
                facts=[f"module: {self._name}"],
                help=f"rm -f {self.path}",
            ).problems
        )


def fingerprint(weights: ExpertsWeights) -> str:
    """Return a name for stored weights: types, shapes and a sample of every expert's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for kind in (weights.gate, weights.up, weights.down):
        for tensor in kind:
            digest.update(repr((str(tensor.type), tuple(tensor.shape))).encode())
            for sample in _samples(tensor):
                digest.update(sample)
    return digest.hexdigest()


def _samples(tensor: PackedTensor) -> Iterator[bytes]:
    flat = tensor.data.reshape(-1)
    for start in (0, len(flat) // 3, len(flat) * 2 // 3, max(0, len(flat) - _SAMPLE)):
        yield flat[start : start + _SAMPLE].tobytes()


def layout_digest(
    library: Library, widths: tuple[int, int], group: int, shape: ExpertsShape
) -> str:
    """Return a digest of what a known matrix of the layer's sizes becomes here.

    BLIS promises no layout: it follows from its blocking, which depends on version, CPU and
    settings. This shows it, and the scheme of the scales with it.
    """
    digest = hashlib.blake2b(digest_size=16)
    for width, depth in zip(widths, (shape.hidden_size, shape.intermediate_size), strict=True):
        numbers = np.arange(width * depth, dtype=np.uint64) * np.uint64(2654435761)
        floats = (numbers >> np.uint64(13) & np.uint64(0xFFFF)).astype(np.float32) - np.float32(
            32768
        )
        matrix = floats.reshape(width, depth)
        stored = PackedTensor("layout", matrix.shape, QuantType.F32, matrix.view(np.uint8))
        made = allocate(library, 1, width, depth, width, group, "a layout check")
        made.panels[:] = 0  # what padding BLIS leaves untouched must not differ
        fill(library, made, [(stored,)], 0, "a layout check")
        digest.update(made.panels.data)
        digest.update(made.scales.data)
    return digest.hexdigest()


def _parts(gate_up: Matrices, down: Matrices) -> Iterator[Bytes]:
    for array in (gate_up.panels, gate_up.scales, down.panels, down.scales):
        yield array.view(np.uint8)


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN
