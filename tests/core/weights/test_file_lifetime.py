"""Descriptors, mappings and views: nothing leaks, nothing dangles, changes are noticed."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from kt_core.errors import WeightsError
from kt_core.weights import open_weights

from .gguf_bytes import TENSORS, File
from .safetensors_bytes import model
from .split_parts import PARTS, name, part


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings(path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(File().build())
    return path


def test_view_is_zero_copy_and_read_only(path):
    with open_weights(path) as source:
        first = source.tensor("output.weight")
        second = source.tensor("output.weight")
        assert not first.data.flags.owndata
        assert not first.data.flags.writeable
        assert first.data.ctypes.data == second.data.ctypes.data
        with pytest.raises(ValueError, match="read-only"):
            first.data[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            first.data.flags.writeable = True
        assert mappings(path) == 1


def test_without_mmap_nothing_is_mapped(path):
    with open_weights(path, mmap=False) as source:
        tensor = source.tensor("output.weight")
        assert mappings(path) == 0
        assert not tensor.data.flags.writeable
        assert tensor.data.tobytes() == TENSORS[2].data


def test_header_alone_maps_nothing(path):
    with open_weights(path) as source:
        assert source.metadata["tokens"]
        assert mappings(path) == 0


@pytest.mark.parametrize("use_mmap", [True, False])
def test_views_outlive_the_source(path, use_mmap):
    before = open_files()
    source = open_weights(path, mmap=use_mmap)
    views = [source.tensor(tensor.name) for tensor in TENSORS]
    rows = views[0].rows(slice(1, 2))
    source.close()
    source.close()
    assert [view.data.tobytes() for view in views] == [tensor.data for tensor in TENSORS]
    del views, source
    gc.collect()
    np.testing.assert_array_equal(rows.dequantize(), [[4, 5, 6, 7]])
    del rows
    gc.collect()
    assert open_files() == before
    assert mappings(path) == 0


def test_use_after_close(path):
    source = open_weights(path)
    source.close()
    for action in (lambda: source.tensor("output.weight"), lambda: source.metadata["tokens"]):
        with pytest.raises(WeightsError, match="KT427"):
            action()
    assert source.metadata["llama.block_count"] == 1
    assert len(source.tensors) == 3


def test_forgotten_source_is_closed(path):
    before = open_files()
    open_weights(path).tensor("output.weight")
    gc.collect()
    assert open_files() == before
    assert mappings(path) == 0


def _cut(path):
    os.truncate(path, 500)


def _rewrite(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    os.utime(path, ns=(0, 0))


def _replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize("change", [_cut, _rewrite, _replace])
@pytest.mark.parametrize("use_mmap", [True, False])
def test_g36_change_is_noticed(path, change, use_mmap):
    with open_weights(path, mmap=use_mmap) as source:
        change(path)
        with pytest.raises(WeightsError, match="KT426"):
            source.tensor("output.weight")


def test_unlinked_file_is_still_whole(path):
    with open_weights(path) as source:
        path.unlink()
        assert source.tensor("output.weight").data.tobytes() == TENSORS[2].data


def test_file_that_shrinks_during_the_header(path, monkeypatch):
    real = os.pread

    def shrinking(fd: int, count: int, offset: int) -> bytes:
        return real(fd, count, offset)[:100] if offset < 100 else b""

    monkeypatch.setattr(os, "pread", shrinking)
    with pytest.raises(WeightsError, match="KT426"):
        open_weights(path)


def test_short_reads_are_continued(path, monkeypatch):
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: real(fd, min(count, 7), at))
    with open_weights(path) as source:
        assert source.metadata["tokens"] == ["a", "", "Ġthe", "<|end|>"]


CALLS = {
    "open": (os, "open"),
    "fstat": (os, "fstat"),
    "stat": (os, "stat"),
    "pread": (os, "pread"),
    "preadv": (os, "preadv"),
    "mmap": (mmap, "mmap"),
    "scandir": (os, "scandir"),
}


@pytest.mark.parametrize("kind", ["gguf", "split", "safetensors"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("use_mmap", [True, False])
def test_kth_failure_leaves_nothing_open(tmp_path, monkeypatch, kind, call, use_mmap):
    """Fail the k-th call for k = 1, 2, … until the run succeeds."""
    if kind == "gguf":
        (tmp_path / "model.gguf").write_bytes(File().build())
    elif kind == "split":
        for number in range(PARTS):
            (tmp_path / name(number)).write_bytes(part(number))
    else:
        (tmp_path / "model.safetensors").write_bytes(model())
    module, attribute = CALLS[call]
    real = getattr(module, attribute)
    for k in range(1, 60):
        left = [k]

        def failing(*args, left=left, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **kwargs)

        before = open_files()
        with monkeypatch.context() as patch:
            patch.setattr(module, attribute, failing)
            try:
                with open_weights(tmp_path, mmap=use_mmap) as source:
                    for tensor in source.tensors:
                        source.tensor(tensor)
                    dict(source.metadata)
                code = ""
            except WeightsError as error:
                code = error.code
        assert open_files() == before
        assert mappings(tmp_path) == 0
        assert code in ("", "KT401", "KT422", "KT426", "KT428")
        if not code and left[0] > 0:
            break
    else:
        pytest.fail("never came to an end")


def test_too_many_open_files(tmp_path, path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    blockers = []
    try:
        while len(blockers) < used:
            try:
                blockers.append(os.open(path, os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(WeightsError, match="Too many open files"):
            open_weights(path)
    finally:
        for fd in blockers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_share_a_source(path):
    source = open_weights(path)
    failures = []

    def work() -> None:
        for _ in range(200):
            failures.extend(
                tensor.name
                for tensor in TENSORS
                if source.tensor(tensor.name).data.tobytes() != tensor.data
            )
            if source.metadata["types"] != [1, 1, 3, -1]:
                failures.append("types")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source.close()
    assert failures == []


def test_change_that_keeps_time_and_size(path):
    """Lengths inside the file may lie after the header was proven: still the one error."""
    data = path.read_bytes()
    status = path.stat()
    at = data.index(b"tokens") + 6 + 4 + 4 + 8  # type, item type, count
    with open_weights(path) as source:
        with path.open("r+b") as file:
            file.seek(at)
            file.write((2**63).to_bytes(8, "little"))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(WeightsError, match="KT426"):
            source.metadata["tokens"]
