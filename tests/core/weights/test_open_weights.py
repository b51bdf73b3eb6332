"""Paths of every kind: one model is found, or the error lists what is there, and never blocks."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kt_core.errors import WeightsError
from kt_core.weights import WeightSource, open_weights

from .gguf_bytes import File
from .gguf_cases import BASE
from .safetensors_bytes import model


def refused(path, code: str, **options) -> str:
    start = time.perf_counter()
    with pytest.raises(WeightsError) as caught:
        open_weights(path, **options)
    assert time.perf_counter() - start < 5
    assert caught.value.code == code, str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """Let caplog hear the log, also after a command has set it up for itself."""
    monkeypatch.setattr(logging.getLogger("kt_core"), "propagate", True)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.gguf").write_bytes(BASE)
    return tmp_path


@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
def test_file_and_folder(folder, kind):
    for path in (folder / "model.gguf", folder):
        with open_weights(kind(path)) as source:
            assert isinstance(source, WeightSource)
            assert source.format == "gguf"
            assert len(source.tensors) == 3
            assert source.path == str(path)
            assert source.files == (str(folder / "model.gguf"),)
            assert source.problems == ()


def test_relative_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for path in ("model.gguf", ".", "./model.gguf"):
        with open_weights(path) as source:
            assert source.tensor("output.weight").nbytes == 10


def test_missing_path_names_what_exists(folder):
    assert f"the folder that exists: {folder}" in refused(folder / "a" / "b.gguf", "KT401")
    refused(folder / "model.gguf" / "x", "KT401")
    refused("x" * 5000, "KT401")
    refused("a\0b", "KT401")


def test_empty_folder(tmp_path):
    assert "empty folder" in refused(tmp_path, "KT403")


def test_parent_folder_names_the_right_one(folder):
    inner = folder / "inner"
    inner.mkdir()
    (folder / "model.gguf").rename(inner / "model.gguf")
    text = refused(folder, "KT403")
    assert f"folder: {inner}" in text
    assert f"help: kt inspect {inner}" in text


def test_folder_further_below_is_named(tmp_path):
    inner = tmp_path / "models--a--b" / "snapshots" / "0123"
    inner.mkdir(parents=True)
    (inner / "model.gguf").write_bytes(BASE)
    (inner / "loop").symlink_to(tmp_path)
    for i in range(500):
        (tmp_path / f"z{i}").mkdir()
    assert f"folder: {inner}" in refused(tmp_path, "KT403")


def test_two_models_are_listed(folder):
    (folder / "other.gguf").write_bytes(BASE)
    text = refused(folder, "KT404")
    assert "model: model.gguf" in text
    assert "model: other.gguf" in text
    with open_weights(folder / "other.gguf") as source:
        assert source.problems == ()


def test_two_safetensors_models_are_listed(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(model())
    (tmp_path / "b.safetensors").write_bytes(model())
    assert "b.safetensors" in refused(tmp_path, "KT404")
    (tmp_path / "model.safetensors").write_bytes(model())
    with open_weights(tmp_path) as source:
        assert source.files == (str(tmp_path / "model.safetensors"),)
        (note,) = source.problems
        assert "ignored: a.safetensors" in note.facts


def test_gguf_wins_over_stray_safetensors(folder, caplog):
    (folder / "adapter_model.safetensors").write_bytes(b"not even looked at")
    caplog.set_level("INFO")
    with open_weights(folder, strict=True) as source:
        assert source.format == "gguf"
        (note,) = source.problems
        assert note.code == "KT440"
        assert note.severity == "note"
        assert "ignored: adapter_model.safetensors" in note.facts
    assert "KT440" in caplog.text


def test_format_chooses(folder):
    (folder / "model.safetensors").write_bytes(model())
    with open_weights(folder, format="safetensors") as source:
        assert source.format == "safetensors"
        assert "ignored: model.gguf" in source.problems[0].facts
    with open_weights(folder, format="gguf") as source:
        assert source.format == "gguf"
    refused(folder, "KT441", format="ggml")
    (folder / "model.safetensors").unlink()
    assert "no safetensors file" in refused(folder, "KT403", format="safetensors")


def test_vision_tower_is_left_aside(folder):
    (folder / "mmproj-model-f16.gguf").write_bytes(BASE)
    with open_weights(folder) as source:
        assert source.files == (str(folder / "model.gguf"),)
        assert source.problems[0].code == "KT440"


def test_st10_pickles_are_never_opened(tmp_path):
    for name in ("pytorch_model.bin", "model.pt", "x.pth"):
        os.mkfifo(tmp_path / name)  # opening one of them would block
    text = refused(tmp_path, "KT406")
    assert "not opened: pytorch_model.bin" in text
    assert "safe_serialization" in text


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "model.safetensors"])
def test_st10_pickle_by_content(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(100))
    assert "never opens pickle files" in refused(tmp_path / name, "KT406")


def test_g1_things_that_would_block(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    assert "is a FIFO" in refused(tmp_path / "model.gguf", "KT402")
    assert "is a FIFO" in refused(tmp_path, "KT402")
    assert "character device" in refused("/dev/random", "KT402")
    assert "character device" in refused("/dev/zero", "KT402")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert "is a socket" in refused(tmp_path / "socket", "KT402")


def test_g1_folder_named_like_a_file(tmp_path):
    (tmp_path / "model.gguf").mkdir()
    assert "empty folder" in refused(tmp_path / "model.gguf", "KT403")
    refused(tmp_path, "KT403")


def test_dangling_link(tmp_path):
    (tmp_path / "model.gguf").symlink_to("nowhere")
    refused(tmp_path / "model.gguf", "KT401")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(folder):
    (folder / "model.gguf").chmod(0)
    assert "Permission denied" in refused(folder / "model.gguf", "KT401")


def test_content_decides_not_the_name(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(BASE)
    with open_weights(tmp_path / "a.safetensors") as source:
        assert source.format == "gguf"
    (tmp_path / "noname").write_bytes(model())
    with open_weights(tmp_path / "noname") as source:
        assert source.format == "safetensors"


def test_lfs_pointer_of_a_shard(tmp_path):
    path = tmp_path / "model-00001-of-00001.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    assert "git lfs pull" in refused(path, "KT405")
    assert "git lfs pull" in refused(tmp_path, "KT405")


def test_path_that_cannot_be_printed_is_escaped(tmp_path):
    path = tmp_path / "\x1b[2Jmodel.gguf"
    path.write_bytes(b"xxxx")
    text = refused(path, "KT407")
    assert "\x1b" not in text
    assert "\\x1b[2Jmodel.gguf" in text
    (tmp_path / os.fsdecode(b"\xff.gguf")).write_bytes(File().build())
    with open_weights(tmp_path / os.fsdecode(b"\xff.gguf")) as source:
        assert len(source.tensors) == 3


def test_import_is_light(folder):
    script = (
        "import sys\n"
        "from kt_core.weights import open_weights\n"
        "source = open_weights(sys.argv[1])\n"
        "assert source.metadata['tokens']\n"
        "heavy = ('numpy', 'torch', 'gguf', 'yaml', 'jsonschema', 'transformers')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "source.tensor('output.weight')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "['numpy']"]


def test_missing_tensor_names_the_nearest(folder):
    with open_weights(folder) as source, pytest.raises(WeightsError) as caught:
        source.tensor("blk.0.attn_q.weigth")
    assert caught.value.code == "KT410"
    facts = caught.value.problems[0].facts
    assert facts[0] == "wanted: blk.0.attn_q.weigth"
    assert facts[1].startswith("nearest of 3 present: blk.0.attn_q.weight, ")
    assert facts[1].count(",") == 2


def test_nearest_of_many_is_fast():
    from kt_core.weights.text import nearest

    names = [
        f"blk.{layer}.ffn_{part}.{expert}.weight"
        for layer in range(61)
        for part in ("gate", "up", "down")
        for expert in range(256)
    ]
    start = time.process_time()
    found = nearest("blk.17.ffn_gate.200.wieght", names)
    assert time.process_time() - start < 1
    assert found[0] == "blk.17.ffn_gate.200.weight"
    assert len(found) == 3
    assert nearest("x", []) == []
