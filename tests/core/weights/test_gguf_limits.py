"""Cost is bounded by the file: under 1 MiB, < 1 s of processor time and < 64 MiB, in a child."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from .damage import mutate
from .gguf_bytes import ARRAY, STRING, U8, File, Pair, Tensor, array, string, text, u32, u64
from .gguf_cases import ACCEPTED, BASE, CASES

SECONDS = 1.0
EXTRA_RSS = 64 << 20


def run_child(lines: list[list[str]]) -> list[dict]:
    child = Path(__file__).with_name("limited_child.py")
    done = subprocess.run(
        [sys.executable, str(child)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[len(reports)], done.stderr)
    assert len(reports) == len(lines)
    return reports


def write(folder: Path, files: dict[str, bytes]) -> list[list[str]]:
    lines = []
    for name, data in files.items():
        path = folder / f"{name}.gguf"
        path.write_bytes(data)
        lines += [[str(path)], [str(path), "pread"]]
    return lines


def big_files() -> dict[str, bytes]:
    """Files just under 1 MiB that hold as many of one thing as they can, valid or not."""
    room = (1 << 20) - 4096
    many_keys = [Pair(f"{i:05x}", U8, b"\0") for i in range(room // 18)]
    empty_strings = Pair("k", ARRAY, u32(STRING) + u64(room // 8) + bytes(room // 8 * 8))
    one_more = Pair("k", ARRAY, u32(STRING) + u64(room // 8 + 999) + bytes(room // 8 * 8))
    return {
        "many-keys": File(pairs=many_keys, tensors=[]).build(),
        "many-tensors": File(
            tensors=[Tensor(f"{i:05x}", (), 0, b"") for i in range(room // 29)], alignment=0
        ).build(),
        "many-scalars": File(
            tensors=[Tensor(f"{i:05x}", (0,), 0, b"") for i in range(room // 37)]
        ).build(),
        "empty-strings": File(pairs=[empty_strings], tensors=[]).build(),
        "empty-strings-cut": File(pairs=[one_more], tensors=[]).build(),
        "numbers": File(pairs=[array("k", U8, [0] * room)], tensors=[]).build(),
        "one-text": File(pairs=[text("k", "x" * room)], tensors=[]).build(),
        "nested": File(pairs=[Pair("k", ARRAY, (u32(ARRAY) + u64(1)) * (room // 12))]).build(),
        "zero-names": File(pairs=[], tensors=[], n_tensors=room // 25).build() + bytes(room),
        "long-string-chain": File(
            pairs=[Pair("k", ARRAY, u32(STRING) + u64(room // 9) + string("a") * (room // 9))],
            tensors=[],
        ).build(),
    }


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    files = {case.id: case.data for case in CASES} | ACCEPTED | big_files()
    lines = write(folder, {name: data for name, data in files.items() if len(data) < 1 << 20})
    return {Path(r["path"]).stem: r for r in run_child(lines)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_hostile_file_is_cheap(case, reports):
    report = reports[case.id]
    assert report["code"].startswith(case.code)
    assert report["seconds"] < SECONDS
    assert report["grown"] < EXTRA_RSS


@pytest.mark.parametrize("name", [*ACCEPTED, *big_files()])
def test_full_file_is_cheap(name, reports):
    report = reports[name]
    assert report["code"] == "" or report["code"].startswith("KT4"), report
    assert report["seconds"] < SECONDS
    assert report["grown"] < EXTRA_RSS


def test_g11_is_refused_at_once(reports):
    assert reports["G11-2^62-bytes-in-49"]["seconds"] < 0.05


def test_g40_mutations_with_mapping(tmp_path):
    """Mapped and read to the last byte in a child: no signal, no hang, no memory."""
    rng = random.Random(4040)
    lines = []
    for number in range(400):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(mutate(rng, BASE))
        lines.append([str(path)])
    for report in run_child(lines):
        assert report["code"] == "" or report["code"].startswith("KT4"), report
        assert report["seconds"] < SECONDS
        assert report["grown"] < EXTRA_RSS


def test_g36_file_cut_while_in_use(tmp_path):
    """A reader without mapping survives a file that is cut after it was opened."""
    path = tmp_path / "model.gguf"
    path.write_bytes(File().build() + bytes(8))
    script = (
        "import os, sys\n"
        "from kt_core.errors import WeightsError\n"
        "from kt_core.weights import open_weights\n"
        "source = open_weights(sys.argv[1], mmap=False)\n"
        "os.truncate(sys.argv[1], 200)\n"
        "for name in source.tensors:\n"
        "    try:\n"
        "        source.tensor(name)\n"
        "    except WeightsError as error:\n"
        "        print(error.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["KT426"] * 3
