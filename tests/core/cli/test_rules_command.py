"""kt rules as a person runs it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from kt_core.cli.main import main

RULES = Path(__file__).resolve().parents[3] / "rules"
UPSTREAM = """\
- match: {name: "^lm_head$", class: torch.nn.Linear}  # the head
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs: {generate_device: cpu, generate_op: KLinearTorch}
"""


def kt(capsys, *args):
    status = main(["rules", *(str(arg) for arg in args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list_names_every_shipped_file(capsys):
    status, out, _ = kt(capsys, "list", "--format", "json")
    assert status == 0
    files = {row["name"]: row for row in json.loads(out)["files"]}
    shipped = {path.relative_to(RULES).as_posix()[:-5] for path in RULES.rglob("*.yaml")}
    assert shipped <= files.keys()
    hybrid = files["mixtral/hybrid"]
    assert hybrid["devices"] == ["cpu", "cuda"]
    assert hybrid["needs"] == ["kt-core", "kt-ops-cpu", "kt-ops-cuda"]
    assert files["mixtral/torch"]["usable"]
    assert files["mixtral/torch"]["architectures"] == ["MixtralForCausalLM"]


def test_list_of_one_architecture(capsys):
    for word in ("llama", "LlamaForCausalLM"):
        status, out, _ = kt(capsys, "list", word)
        assert status == 0
        assert "llama/cpu" in out
        assert "mixtral" not in out
    assert "cuda:0-7" in kt(capsys, "list", "deepseek_v3")[1]
    status, _, err = kt(capsys, "list", "lama")
    assert status == 2
    assert "KT738" in err


@pytest.mark.parametrize("name", ["llama/cpu", "rules/llama/cpu.yaml", "llama/cpu.yaml"])
def test_show_prints_the_file(name, capsys):
    status, out, _ = kt(capsys, "show", name)
    assert status == 0
    assert out == (RULES / "llama/cpu.yaml").read_text()


def test_show_of_a_name_that_is_none(capsys):
    status, _, err = kt(capsys, "show", "llama/cup")
    assert status == 2
    assert "did you mean llama/cpu?" in err


def test_migrate_prints_the_new_file_and_lists_the_changes(capsys, tmp_path):
    old = tmp_path / "old.yaml"
    old.write_text(UPSTREAM)
    status, out, err = kt(capsys, "migrate", old)
    assert status == 0
    assert "class: kt_core.Linear" in out
    assert "# the head" in out
    assert "line 4: KLinearTorch -> kt_core.torch_linear" in err
    target = tmp_path / "new.yaml"
    assert kt(capsys, "migrate", old, "-o", target)[0] == 0
    assert target.read_text() == out
    status, _, err = kt(capsys, "migrate", old, "-o", target)
    assert status == 2
    assert "KT739" in err
    assert main(["validate", "--strict", str(target)]) == 0


def test_migrate_reads_a_pipe_and_writes_json(capsys, monkeypatch):
    pipe = io.TextIOWrapper(io.BytesIO(UPSTREAM.encode()))
    monkeypatch.setattr(sys, "stdin", pipe)
    status, out, _ = kt(capsys, "migrate", "-", "--format", "json")
    data = json.loads(out)
    assert status == 0
    assert {change["before"] for change in data["changes"]} >= {"KLinearTorch"}
    assert data["problems"] == []


def test_migrate_ends_with_1_where_something_is_left(capsys, tmp_path):
    old = tmp_path / "old.yaml"
    old.write_text(UPSTREAM.replace("KLinearTorch", "KLinearIPEXLLM"))
    status, out, err = kt(capsys, "migrate", old)
    assert status == 1
    assert "KLinearIPEXLLM" in out
    assert "KT219" in err


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        ([], 2, "KT700"),
        (["lst"], 2, "KT700"),
        (["new"], 2, "KT725"),
        (["new", "--gguf", "/no/such.gguf"], 1, "KT4"),
        (["migrate", "/no/such.yaml"], 1, "KT101"),
    ],
)
def test_wrong_calls(args, status, says, capsys):
    if args[:1] == ["new"]:
        pytest.importorskip("torch")
    found, _, err = kt(capsys, *args)
    assert found == status
    assert says in err


def test_a_file_that_is_not_utf8(capsys, tmp_path):
    old = tmp_path / "old.yaml"
    old.write_bytes(b"- match: {name: \xff}\n")
    status, _, err = kt(capsys, "migrate", old)
    assert status == 1
    assert "KT104" in err
