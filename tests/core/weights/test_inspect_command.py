"""``kt inspect``: what it prints, what it hides from the terminal, and how it exits."""

from __future__ import annotations

import json
import logging

import pytest

from kt_core.cli.main import main

from .gguf_bytes import (
    F32,
    PAIRS,
    STRING,
    TENSORS,
    File,
    Pair,
    array,
    scalar,
    string,
    text,
    u32,
    u64,
)
from .safetensors_bytes import model
from .split_parts import PARTS, name, part


@pytest.fixture
def kt(capsys, monkeypatch):
    """Run the command; return exit code, stdout, stderr."""
    logger = logging.getLogger("kt_core")  # the command sets it up for a process of its own
    for attribute in ("handlers", "level", "propagate"):
        monkeypatch.setattr(logger, attribute, getattr(logger, attribute))
    monkeypatch.setattr(logger, "handlers", [])

    def run(*argv: object) -> tuple[int, str, str]:
        code = main(["inspect", *map(str, argv)])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    long = array("long", STRING, [f"token{i}" for i in range(50)])
    template = text("template", "line one\nline\x1b[2J two " + "x" * 200)
    path.write_bytes(File(pairs=[*PAIRS, long, template]).build())
    return path


def test_report(kt, file):
    code, out, err = kt(file)
    assert code == 0
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == str(file)
    assert lines[1] == "format gguf version 3 alignment 32"
    assert lines[2].startswith("3 tensors, 77 parameters, 78 B of ")
    assert "general.architecture string llama" in lines
    assert "a.f32 float32 1.5" in lines
    assert "tokens string[4] [a, , Ġthe, <|end|>]" in lines
    assert any(line.startswith("long string[50] [token0, ") for line in lines)
    assert any(line.endswith("… 42 more]") for line in lines)
    assert "blk.0.ffn_up.weight Q4_0 [2, 32] 36 B" in lines
    assert "Q4_0 1 64 36 B" in lines
    assert "\x1b" not in out
    assert "line one\\nline\\x1b[2J two xxx" in out


def test_tensors_only(kt, file):
    code, out, _ = kt(file, "--tensors")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "llama" not in out


def test_one_value_in_full(kt, file):
    code, out, _ = kt(file, "--metadata", "template")
    assert code == 0
    assert out == "line one\nline\\x1b[2J two " + "x" * 200 + "\n"
    assert kt(file, "--metadata", "long")[1].split() == [f"token{i}" for i in range(50)]
    _, out, _ = kt(file, "--metadata", "a.u64", "--metadata", "a.bool")
    assert out.splitlines() == ["a.u64:", str(2**63), "a.bool:", "True"]


def test_unknown_key(kt, file):
    code, out, err = kt(file, "--metadata", "general.architcture")
    assert code == 1
    assert out == ""
    assert "KT442" in err
    assert "general.architecture" in err


def test_json(kt, file):
    code, out, err = kt(file, "--format", "json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["parameters"] == 77
    assert data["tensor_bytes"] == 78
    assert data["version"] == 3
    assert data["files"] == [str(file)]
    assert data["types"]["F16"] == {"tensors": 1, "parameters": 5, "bytes": 10}
    assert data["metadata"]["a.i64"] == {"type": "int64", "value": -(2**40)}
    assert data["metadata"]["long"]["count"] == 50
    assert data["metadata"]["long"]["head"][:2] == ["token0", "token1"]
    first = data["tensors"][0]
    assert first["name"] == TENSORS[0].name
    assert first["shape"] == [2, 4]
    assert data["problems"] == []
    assert json.loads(kt(file, "--format", "json", "--tensors")[1]) == {"tensors": data["tensors"]}
    _, out, _ = kt(file, "--format", "json", "--metadata", "long")
    assert len(json.loads(out)["long"]) == 50


def test_json_cannot_steer_a_terminal(kt, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(File(pairs=[text("k", "\x1b[2J\x9b2J\u202e")]).build())
    _, out, _ = kt(path, "--format", "json")
    assert not set("\x1b\x9b\u202e") & set(out)
    assert json.loads(out)["metadata"]["k"]["value"] == "\x1b[2J\x9b2J\u202e"


def test_numbers_that_are_no_json(kt, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(File(pairs=[scalar("k", F32, float("nan"))]).build())
    _, out, _ = kt(path, "--format", "json")
    assert json.loads(out)["metadata"]["k"]["value"] == "nan"


def test_text_that_is_not_utf8_is_said_and_the_rest_shown(kt, tmp_path):
    path = tmp_path / "model.gguf"
    bad = [text("bad", b"\xff\xfe"), text("good", "fine")]
    path.write_bytes(File(pairs=bad).build())
    code, out, _ = kt(path)
    assert code == 0
    assert 'the text in "bad" is not UTF-8' in out
    assert "fine" in out
    _, out, _ = kt(path, "--format", "json")
    assert json.loads(out)["metadata"]["bad"]["problem"]["code"] == "KT429"
    code, _, err = kt(path, "--metadata", "bad")
    assert code == 1
    assert "KT429" in err
    tokens = Pair("tokens", 9, u32(STRING) + u64(2) + string("a") + string(b"\xff"))
    path.write_bytes(File(pairs=[tokens]).build())
    code, _, err = kt(path, "--metadata", "tokens")
    assert code == 1
    assert "field: tokens[1]" in err


def test_split_set(kt, tmp_path):
    for number in range(PARTS):
        (tmp_path / name(number)).write_bytes(part(number))
    code, out, _ = kt(tmp_path / name(1))
    assert code == 0
    assert f"in {PARTS} files" in out
    assert str(tmp_path / name(2)) in out
    assert "split.count" in out


def test_safetensors(kt, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(model(format="pt"))
    code, out, _ = kt(path)
    assert code == 0
    assert "format safetensors" in out
    assert "BF16" in out
    assert "pt" in out


def test_wrong_file(kt, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nonsense")
    code, out, err = kt(path)
    assert (code, out) == (1, "")
    assert err.startswith(f"{path}: KT407 is no gguf file\n")
    code, out, err = kt(path, "--format", "json")
    assert (code, err) == (1, "")
    assert json.loads(out)["problems"][0]["code"] == "KT407"


def test_strict(kt, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(File(tail=bytes(100)).build())
    code, _, err = kt(path)
    assert code == 0
    assert err.count("KT421") == 1
    assert kt(path, "--strict")[0] == 1


def test_what_was_ignored_is_said(kt, file):
    (file.parent / "adapter.safetensors").write_bytes(b"")
    code, _, err = kt(file.parent)
    assert code == 0
    assert "KT440 note" in err
    assert "ignored: adapter.safetensors" in err


def test_wrong_arguments_exit_with_2(kt, file):
    for argv in ([], [file, "--tensors", "--metadata", "k"], [file, "--format", "xml"]):
        code, out, err = kt(*argv)
        assert (code, out) == (2, "")
        assert "KT700" in err
