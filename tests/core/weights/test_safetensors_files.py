"""safetensors: hostile headers, agreement with the safetensors package, sharded sets."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from kt_core.errors import WeightsError
from kt_core.weights import QuantType, open_weights

from .damage import MemoryFile, mutate
from .gguf_bytes import File
from .safetensors_bytes import DATA, entries, file, model

BASE = model(format="pt")
VALUES = b"".join(data for _, _, data in DATA.values())


@dataclass(frozen=True)
class Case:
    id: str
    data: bytes
    code: str
    says: str = ""
    accepted_by_package: bool = False


def changed(name: str, **changes: object) -> bytes:
    header = entries(DATA)
    header[name] |= changes
    return file(header, VALUES)


def moved(**offsets: list[int]) -> bytes:
    header = entries(DATA)
    for name, value in offsets.items():
        header[next(n for n in header if n.startswith(name))]["data_offsets"] = value
    return file(header, VALUES)


CASES = [
    Case("ST1-0-bytes", b"", "KT408", "is empty"),
    Case("ST1-7-bytes", bytes(7), "KT408", "ends at byte 7"),
    Case("ST1-2^63", file({}, b"", 2**63), "KT450", "9223372036854775808"),
    Case("ST1-over-the-limit", file({}, b"", 100_000_001), "KT450", "at most 100000000"),
    Case("ST1-past-eof", file({}, b"", 64), "KT450", "are left in the file"),
    Case("ST1-zero", file(b"", b""), "KT450"),
    Case("ST2-not-utf8", file(b'{"\xff": 1}', b""), "KT451", "UTF-8"),
    Case("ST2-not-json", file(b"{abc}", b""), "KT451", "not JSON"),
    Case("ST2-list", file(b"[]", b""), "KT451", "begin with '{'"),
    Case("ST2-deep", file(b'{"a":' + b"[" * 200_000, b""), "KT451", "too deep"),
    Case("ST2-deep-closed", file(b'{"a":' * 9999 + b"1" + b"}" * 9999, b""), "KT451", "too deep"),
    Case("ST2-huge-number", file(b'{"a": ' + b"9" * 5000 + b"}", b""), "KT451", "number"),
    Case("ST2-nan", file(b'{"a": NaN}', b""), "KT451", "NaN"),
    Case("ST3-leading-space", file(b" {}", b""), "KT451", "begin with '{'", True),
    Case("ST3-same-key", file(b'{"__metadata__":{"a":"1","a":"2"}}', b""), "KT451", "twice", True),
    Case(
        "ST3-same-tensor",
        file(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            b"x",
        ),
        "KT451",
        'the key "a" twice',
        True,
    ),
    Case("ST4-overlap", moved(b=[20, 28]), "KT418", "inside an earlier"),
    Case("ST4-same-place", moved(c=[24, 32]), "KT418"),
    Case("ST4-hole", moved(c=[36, 44]), "KT418", "hole of 4 bytes"),
    Case("ST4-reversed", moved(c=[40, 32]), "KT452", "ascending"),
    Case("ST4-trailing-byte", BASE + b"x", "KT453", "1 bytes follow"),
    Case("ST4-missing-byte", BASE[:-1], "KT419", "cut off"),
    Case("ST5-shape-negative", changed("a.weight", shape=[-2, -3]), "KT416"),
    Case("ST5-shape-float", changed("a.weight", shape=[2.0, 3]), "KT416"),
    Case("ST5-shape-bool", changed("a.weight", shape=[True, 6]), "KT416"),
    Case("ST5-shape-2^63", changed("a.weight", shape=[2**63, 2]), "KT416"),
    Case("ST5-shape-overflow", changed("a.weight", shape=[2**32, 2**32]), "KT416"),
    Case(
        "ST5-shape-zero-of-2^62",
        file({"a": {"dtype": "F32", "shape": [0, 2**62, 4], "data_offsets": [0, 0]}}, b""),
        "KT416",
        "more values",
        True,
    ),
    Case(
        "ST5-33-dimensions",
        file({"a": {"dtype": "U8", "shape": [1] * 33, "data_offsets": [0, 1]}}, b"x"),
        "KT416",
        "33 dimensions",
        True,
    ),
    Case("ST5-shape-text", changed("a.weight", shape="2,3"), "KT416"),
    Case("ST5-dtype", changed("a.weight", dtype="F33"), "KT417", "F33"),
    Case("ST5-dtype-list", changed("a.weight", dtype=["F32"]), "KT417"),
    Case("ST5-size", changed("a.weight", shape=[2, 4]), "KT452", "needs 32 bytes"),
    Case("ST5-offsets-three", changed("a.weight", data_offsets=[0, 24, 24]), "KT452"),
    Case("ST5-offsets-float", changed("a.weight", data_offsets=[0, 24.0]), "KT452"),
    Case("ST5-no-shape", file({"a": {"dtype": "U8", "data_offsets": [0, 0]}}, b""), "KT452"),
    Case("ST5-entry-list", file({"a": []}, b""), "KT452"),
    Case("ST6-metadata-number", file({"__metadata__": {"a": 1}}, b""), "KT451", "texts"),
    Case("ST6-metadata-list", file({"__metadata__": []}, b""), "KT451", "texts"),
    Case(
        "ST8-name-escape",
        file({"\x1b[2J": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, b""),
        "KT412",
        "\\x1b[2J",
        True,
    ),
    Case(
        "ST8-name-surrogate",
        file(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b""),
        "KT412",
        "\\ud800",
    ),
]

ACCEPTED = {
    "ST6-unknown-field": changed("a.weight", extra=[1]),
    "ST7-zero-size": file({"a": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}}, b""),
    "ST7-rank-0": file({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, bytes(4)),
    "ST7-nan": file(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        struct.pack("<2f", float("nan"), float("inf")),
    ),
    "padded-header": file(json.dumps(entries(DATA)).encode() + b"      ", VALUES),
    "no-tensors": file({}, b""),
    "header-like-a-pickle": file(json.dumps(entries(DATA)).encode().ljust(640), VALUES),
}


def by_package(path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as opened:
            opened.keys()
    except SafetensorError:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_is_refused_with_its_code(case, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(case.data)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WeightsError) as caught:
        open_weights(path)
    assert len(os.listdir("/proc/self/fd")) == before
    text = str(caught.value)
    assert caught.value.code == case.code, text
    assert str(path) in text
    assert case.says in text
    if case.data:  # the package cannot map an empty file
        assert by_package(path) == case.accepted_by_package


@pytest.mark.parametrize("id", ACCEPTED)
def test_is_accepted(id, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(ACCEPTED[id])
    assert by_package(path)
    with open_weights(path, strict=True) as source:
        assert source.format == "safetensors"
        for name, info in source.tensors.items():
            assert source.tensor(name).dequantize().shape == info.shape


def test_values_types_and_metadata(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(BASE)
    with open_weights(path) as source:
        assert dict(source.metadata) == {"format": "pt"}
        assert [info.type for info in source.tensors.values()] == [
            QuantType.F32,
            QuantType.BF16,
            QuantType.I64,
        ]
        np.testing.assert_array_equal(
            source.tensor("a.weight").dequantize(), np.arange(6, dtype=np.float32).reshape(2, 3)
        )
        np.testing.assert_array_equal(source.tensor("b.bias").dequantize(), [1, -2, 0, np.inf])


def test_files_of_the_package_read_alike(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    kinds = ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64"]
    kinds += ["uint8", "bool", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
    kinds += ["float8_e8m0fnu"]
    tensors = {}
    for kind in kinds:
        raw = torch.randint(0, 2 if kind == "bool" else 256, (3, 8 * 5), dtype=torch.uint8)
        tensors[kind] = raw.view(getattr(torch, kind)).clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with open_weights(tmp_path) as source:
        assert set(source.tensors) == set(tensors)
        for name, value in tensors.items():
            ours = source.tensor(name).to_torch()
            assert ours.dtype == value.dtype
            assert ours.shape == value.shape
            assert torch.equal(ours.view(torch.uint8), value.view(torch.uint8))


@pytest.fixture
def memory():
    memory = MemoryFile()
    yield memory
    memory.close()


def test_every_cut_is_refused(memory):
    for size in range(len(BASE)):
        memory.write(BASE[:size])
        with pytest.raises(WeightsError):
            open_weights(memory.path, format="safetensors")


def test_mutations(memory):
    rng = random.Random(41)
    seen: dict[str, int] = {}
    for _ in range(3000):
        memory.write(mutate(rng, BASE))
        try:
            with open_weights(memory.path, mmap=False, format="safetensors") as source:
                for name in source.tensors:
                    source.tensor(name)
            code = "ok"
        except WeightsError as error:
            code = error.code
        seen[code] = seen.get(code, 0) + 1
    assert len(seen) >= 6, seen


def test_reading_needs_neither_the_package_nor_numpy(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(BASE)
    script = (
        "import sys\n"
        "from kt_core.weights import open_weights\n"
        "source = open_weights(sys.argv[1])\n"
        "assert source.tensors\n"
        "print([m for m in ('numpy', 'torch', 'safetensors', 'gguf') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Sharded sets


def names(count: int) -> list[str]:
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


@pytest.fixture
def shards(tmp_path):
    weight_map = {}
    for (name, value), part in zip(DATA.items(), names(3), strict=True):
        (tmp_path / part).write_bytes(model({name: value}))
        weight_map[name] = part
    index = {"metadata": {"total_size": len(VALUES)}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def rewrite(shards, **weight_map: str) -> None:
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"] |= weight_map
    index.write_text(json.dumps(content))


@pytest.mark.parametrize("given", ["", "model.safetensors.index.json", *names(3)])
@pytest.mark.parametrize("with_index", [True, False])
def test_folder_index_and_any_shard_open_the_set(shards, given, with_index):
    if not with_index:
        (shards / "model.safetensors.index.json").unlink()
        if given.endswith(".json"):
            return
    with open_weights(shards / given, strict=True) as source:
        assert set(source.tensors) == set(DATA)
        assert source.problems == ()
        for name, (_, _, data) in DATA.items():
            assert source.tensor(name).data.tobytes() == data


def refused(path, code: str) -> str:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WeightsError) as caught:
        open_weights(path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert caught.value.code == code, str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("with_index", [True, False])
def test_st9_missing_shard_is_named(shards, with_index):
    (shards / names(3)[1]).unlink()
    if not with_index:
        (shards / "model.safetensors.index.json").unlink()
    assert f"missing: {names(3)[1]}" in refused(shards, "KT422")
    assert f"missing: {names(3)[1]}" in refused(shards / names(3)[0], "KT422")


def test_st9_shard_lacks_a_tensor(shards):
    rewrite(shards, **{"a.wieght": names(3)[0]})
    text = refused(shards, "KT454")
    assert "absent: a.wieght in model-00001-of-00003.safetensors" in text
    assert "nearest to the first: a.weight" in text


def test_tensor_outside_the_index_is_a_warning(shards):
    (shards / names(3)[2]).write_bytes(
        model({"c.ids": DATA["c.ids"], "d.extra": ("U8", [1], b"x")})
    )
    with open_weights(shards) as source:
        assert "d.extra" not in source.tensors
        assert [problem.code for problem in source.problems] == ["KT455"]
    with pytest.raises(WeightsError, match=r"d\.extra"):
        open_weights(shards, strict=True)


def test_same_tensor_in_two_shards(shards):
    (shards / names(3)[2]).write_bytes(model({"c.ids": DATA["c.ids"], "b.bias": DATA["b.bias"]}))
    with open_weights(shards, strict=True) as source:  # the index says which one counts
        assert source.tensors["b.bias"].file.endswith(names(3)[1])
    (shards / "model.safetensors.index.json").unlink()
    assert "b.bias" in refused(shards, "KT415")


@pytest.mark.parametrize("part", ["../secret.safetensors", "/etc/passwd", "..", "a\\b", "a/b", ""])
def test_st8_part_outside_the_folder(shards, part):
    rewrite(shards, **{"a.weight": part})
    assert "not a plain file name" in refused(shards, "KT424")


def test_st8_link_outside_the_folder(shards, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.safetensors"
    (shards / names(3)[0]).rename(outside)
    (shards / names(3)[0]).symlink_to(outside)
    assert str(outside) in refused(shards, "KT424")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("[]", "no weight_map"),
        ("{}", "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ('{"weight_map": {"a": 1}}', "no weight_map"),
        ('{"weight_map": {}, "weight_map": {}}', "twice"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_bad_index(shards, content, says):
    (shards / "model.safetensors.index.json").write_text(content)
    assert says in refused(shards, "KT454")


def test_forced_format(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(BASE)
    with pytest.raises(WeightsError, match="is a safetensors file, not gguf"):
        open_weights(path, format="gguf")
    path.write_bytes(File().build())
    with pytest.raises(WeightsError, match="is a gguf file, not safetensors"):
        open_weights(path, format="safetensors")
