"""kt plan, kt chat and kt bench as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from kt_core.cli.main import main
from kt_core.testing.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    file = tmp_path_factory.mktemp("cli") / "tiny.gguf"
    write_tiny_llama(file)
    return str(file)


def kt(capsys, *args):
    status = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_plan_text_json_and_why(tiny, capsys):
    status, out, err = kt(capsys, "plan", "--gguf", tiny, "--device", "cpu")
    assert (status, err) == (0, "")
    assert "kt_core.Linear" in out
    assert "rules/llama/cpu.yaml" in out
    status, out, _ = kt(capsys, "plan", "--gguf", tiny, "--device", "cpu", "--format", "json")
    assert json.loads(out)["architecture"] == "LlamaForCausalLM"
    status, out, _ = kt(capsys, "plan", "--gguf", tiny, "--device", "cpu", "--why", "lm_head")
    assert status == 0
    assert "wins" in out


def test_plan_exit_codes(tiny, tmp_path, capsys):
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {match: {name: ^no$}, replace: {class: default}}\n")
    assert kt(capsys, "plan", "--gguf", tiny, "--rules", rules)[0] == 0
    assert kt(capsys, "plan", "--gguf", tiny, "--rules", rules, "--strict")[0] == 1
    rules.write_text("- {match: {name: norm$}, replace: {class: kt_core.Linear}}\n")
    assert kt(capsys, "plan", "--gguf", tiny, "--rules", rules)[0] == 1
    rules.write_text("- {match: {name: ^lm_head$}, replace: {class: nobody.Linear}}\n")
    assert kt(capsys, "plan", "--gguf", tiny, "--rules", rules)[0] == 1
    assert kt(capsys, "plan", "--gguf", "/no/such/file.gguf")[0] == 1
    assert kt(capsys, "plan")[0] == 2
    assert kt(capsys, "plan", "--gguf", tiny, "--dtype", "int8")[0] == 2


def test_chat_once(tiny, capsys):
    status, out, err = kt(
        capsys, "chat", "--gguf", tiny, "-p", "hi", "--max-new-tokens", "3", "--dtype", "float32"
    )
    assert status == 0
    assert out.endswith("\n")
    assert "prefill" in err


def test_chat_takes_piped_input_as_one_prompt(tiny):
    command = [sys.executable, "-m", "kt_core.cli", "chat", "--gguf", tiny, "--max-new-tokens", "2"]
    result = subprocess.run(
        command, input="two\nlines", capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0
    assert result.stderr.count("prefill") == 1


@pytest.mark.parametrize(
    "args",
    [
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--max-new-tokens", "-5"],
        ["--rules", "/no/such.yaml"],
        ["--model", "/no/such/folder"],
        ["--device", "tpu"],
    ],
)
def test_chat_mistakes_end_in_one_coded_line(tiny, capsys, args):
    status, out, err = kt(capsys, "chat", "--gguf", tiny, "-p", "hi", *args)
    assert status in (1, 2)
    assert out == ""
    assert "KT" in err
    assert "Traceback" not in err


def test_chat_without_a_tokenizer_says_so(tmp_path, capsys):
    file = tmp_path / "bare.gguf"
    write_tiny_llama(file, tokenizer=False)
    status, _, err = kt(capsys, "chat", "--gguf", file, "-p", "hi")
    assert status == 2
    assert "KT727" in err


def test_bench_of_a_model_without_a_tokenizer(tmp_path, capsys):
    file = tmp_path / "bare.gguf"
    write_tiny_llama(file, tokenizer=False)
    status, out, _ = kt(
        capsys, "bench", "--gguf", file, "-p", 16, "-n", 4, "-t", 1, "--format", "json"
    )
    assert status == 0
    result = json.loads(out)
    assert result["prefill_tokens_per_s"] > 0
    assert result["decode_tokens_per_s"] > 0
    assert result["threads"] == 1
    assert 0 <= result["glue_share"] <= 1


@pytest.mark.parametrize("layer", ["experts", "linear"])
def test_bench_of_a_layer(capsys, layer):
    kernel = f"kt_core.torch_{layer}"
    status, out, _ = kt(
        capsys,
        *("bench", "--layer", layer, "--kernel", kernel, "--experts", 4, "--hidden", 256),
        *("--inter", 256, "--top-k", 2, "--tokens", "1,3", "--seconds", 0.01, "--format", "json"),
    )
    assert status == 0
    rows = json.loads(out)["results"]
    assert [row["tokens"] for row in rows] == [1, 3]
    assert all(row["ms"] > 0 and row["gops"] > 0 and row["gb_per_s"] > 0 for row in rows)
    assert json.loads(out)["floors"]["read_gb_per_s"] > 0


@pytest.mark.parametrize(
    "args",
    [
        ["--layer", "experts"],
        ["--layer", "experts", "--kernel", "no.such"],
        ["--layer", "experts", "--kernel", "kt_core.torch_linear"],
        ["--layer", "linear", "--kernel", "kt_core.torch_linear", "--tokens", "x"],
        ["-t", "0"],
        [],
    ],
)
def test_bench_mistakes_are_usage_errors(capsys, args):
    status, _, err = kt(capsys, "bench", *args)
    assert status == 2
    assert "KT7" in err


@pytest.mark.parametrize("context", ["-5", "many"])
def test_a_context_that_is_no_count_is_kt700(tiny, capsys, context):
    status, _, err = kt(capsys, "plan", "--gguf", tiny, "--context", context)
    assert status == 2
    assert err.startswith("KT700 kt plan: argument --context: ")


@pytest.mark.parametrize(
    "option",
    ["--tokens=0", "--tokens=99999999999999999999", "--hidden=0", "--inter=-1", "--top-k=65"],
)
def test_impossible_sizes_of_a_layer_are_kt729(capsys, option):
    kernel = "--kernel=kt_core.torch_experts"
    status, _, err = kt(capsys, "bench", "--layer", "experts", kernel, option)
    assert status == 2
    assert err.startswith(f"KT729 {option.replace('=', ' ')}: must lie in 1 to ")
