"""Split GGUF sets: any part opens the whole, and nothing that is not exactly a set does."""

from __future__ import annotations

import os
import shutil

import gguf
import numpy as np
import pytest

from kt_core.errors import WeightsError
from kt_core.weights import open_weights

from .gguf_bytes import I32, TENSORS, U16, U32, File, scalar, text
from .split_parts import PARTS, name, part


@pytest.fixture
def folder(tmp_path):
    for number in range(PARTS):
        (tmp_path / name(number)).write_bytes(part(number))
    return tmp_path


@pytest.mark.parametrize("given", [0, 1, 2, "folder"])
def test_any_part_or_the_folder_opens_the_set(folder, given):
    path = folder if given == "folder" else folder / name(given)
    with open_weights(path, strict=True) as source:
        assert source.path == str(path)
        assert list(source.tensors) == [tensor.name for tensor in TENSORS]
        assert source.files == tuple(str(folder / name(i)) for i in range(PARTS))
        assert source.metadata["general.architecture"] == "llama"
        for tensor in TENSORS:
            assert source.tensor(tensor.name).data.tobytes() == tensor.data
        assert os.path.basename(source.tensors[TENSORS[0].name].file) == name(1)


def test_set_written_by_the_gguf_package(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "llama", split_max_tensors=2)
    values = {f"blk.{i}.w": np.full((4, 8), i, np.float32) for i in range(5)}
    for key, value in values.items():
        writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_weights(tmp_path, strict=True) as source:
        assert len(source.files) == 3
        for key, value in values.items():
            np.testing.assert_array_equal(source.tensor(key).dequantize(), value)


def refused(path, code: str) -> str:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WeightsError) as caught:
        open_weights(path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert caught.value.code == code, str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("missing", range(PARTS))
def test_missing_part_is_named(folder, missing):
    (folder / name(missing)).unlink()
    given = (missing + 1) % PARTS
    assert f"missing: {name(missing)}" in refused(folder / name(given), "KT422")
    assert f"missing: {name(missing)}" in refused(folder, "KT422")


def test_joined_with_cat(folder):
    joined = folder / "whole.gguf"
    joined.write_bytes(b"".join((folder / name(i)).read_bytes() for i in range(PARTS)))
    assert "joined with cat" in refused(joined, "KT425")


def test_single_part_under_another_name(folder):
    shutil.copy(folder / name(1), folder / "whole.gguf")
    text = refused(folder / "whole.gguf", "KT423")
    assert "part 2 of 3" in text
    assert "MODEL-00002-of-00003.gguf" in text


def test_same_tensor_in_two_parts(folder):
    (folder / name(2)).write_bytes(part(2, tensors=TENSORS))
    text = refused(folder / name(0), "KT415")
    assert TENSORS[0].name in text
    assert name(1) in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"no": 1}, "split.no is 1, expected 2"),
        ({"count": 4}, "split.count is 4, expected 3"),
    ],
)
def test_part_of_another_set(folder, change, says):
    (folder / name(2)).write_bytes(part(2, **change))
    assert says in refused(folder / name(0), "KT423")


def test_part_without_split_keys(folder):
    (folder / name(2)).write_bytes(File().build())
    assert "split.count is None" in refused(folder / name(0), "KT423")


def test_total_of_tensors_is_held_to(folder):
    (folder / name(0)).write_bytes(part(0, total=4))
    assert "says the model has 4 tensors; 3 were found" in refused(folder, "KT423")


def test_damaged_part_is_the_one_named(folder):
    data = (folder / name(2)).read_bytes()
    (folder / name(2)).write_bytes(data[:-1])
    assert name(2) in refused(folder / name(0), "KT419")


@pytest.mark.parametrize("value", [text("split.count", "3"), scalar("split.count", I32, -3)])
def test_split_count_of_a_wrong_type(tmp_path, value):
    path = tmp_path / name(0)
    path.write_bytes(File(pairs=[value]).build())
    assert "split.count" in refused(path, "KT423")


def test_huge_split_count(tmp_path):
    path = tmp_path / name(0)
    path.write_bytes(File(pairs=[scalar("split.count", U32, 2**32 - 1)]).build())
    refused(path, "KT423")


def test_count_of_one_is_a_whole_model(tmp_path):
    path = tmp_path / "any name.gguf"
    pairs = [scalar("split.count", U16, 1), scalar("split.no", U16, 0)]
    path.write_bytes(File(pairs=pairs).build())
    with open_weights(path) as source:
        assert len(source.tensors) == 3


def test_g21_another_gguf_in_the_folder_is_left_alone(folder):
    (folder / "other.gguf").write_bytes(File().build())
    with open_weights(folder / name(0)) as source:
        assert len(source.files) == PARTS
    text = refused(folder, "KT404")
    assert "model (3 parts)" in text
    assert "other.gguf" in text


def test_g38_link_out_of_the_folder(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.gguf"
    shutil.move(folder / name(1), outside)
    (folder / name(1)).symlink_to(outside)
    text = refused(folder / name(0), "KT424")
    assert str(outside) in text
    # The file that the user names may be a link: its folder is then the user's choice too.
    with pytest.raises(WeightsError, match="missing"):
        open_weights(outside.rename(outside.with_name(name(1))))


def test_link_of_another_name_to_a_part(folder, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "latest.gguf"
    link.symlink_to(folder / name(1))
    with open_weights(link) as source:
        assert len(source.tensors) == 3
        assert source.path == str(link)
        for tensor in TENSORS:
            assert source.tensor(tensor.name).data.tobytes() == tensor.data


def test_link_inside_the_folder(folder):
    (folder / name(1)).rename(folder / "blob")
    (folder / name(1)).symlink_to("blob")
    with open_weights(folder / name(0)) as source:
        assert len(source.tensors) == 3


def test_links_of_the_hugging_face_cache(folder, tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123abc"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number in range(PARTS):
        shutil.move(folder / name(number), blobs / f"{number}")
        (snapshot / name(number)).symlink_to(f"../../blobs/{number}")
    for path in (snapshot, snapshot / name(1)):
        with open_weights(path) as source:
            assert len(source.tensors) == 3
