"""What pages show is true: rule files pass, commands exist, and what asks to be run prints what it says."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kt_core.errors import Severity
from kt_core.rules import check_text

WRONG = "# wrong.yaml"
"""First line of a rule file that is shown for its mistakes."""


def test_rule_files_pass(yaml_block, all_distributions):
    data = yaml.safe_load(yaml_block.text)
    rules = data.get("rules") if isinstance(data, dict) else data
    if not isinstance(rules, list) or not all(isinstance(r, dict) and "match" in r for r in rules):
        pytest.skip("not a rule file")
    problems = check_text(yaml_block.text, str(yaml_block), all_distributions).problems
    found = [p.render() for p in problems if p.severity is not Severity.NOTE]
    assert bool(found) == yaml_block.text.startswith(WRONG), found


def test_json_is_json(json_block):
    json.loads(json_block.text)


def test_python_compiles(python_block):
    ast.parse(python_block.text)


def commands(text):
    """The commands of a console block, each on one line and without a comment or redirection."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        if line.startswith("$ "):
            for part in re.split(r" && | \| ", line[2:]):
                yield re.split(r"\s[#>]", part)[0].strip()


def test_commands_exist_with_these_options(console_block):
    from kt_core.cli.main import COMMANDS
    from kt_core.manual.commands import command_parsers

    parsers = {name: parser for name, _, parser in command_parsers()}
    for command in commands(console_block.text):
        words = [word for word in shlex.split(command) if "=" not in word.partition("/")[0]]
        if not words or words[0] not in ("kt", "kt-validate"):
            continue
        if words[0] == "kt-validate":
            words[:1] = ["kt", "validate"]
        if len(words) == 1 or words[1].startswith("-"):
            continue
        assert words[1] in COMMANDS, command
        rest = [word for word in words[2:] if word not in ("…", "...")]
        if "--help" in rest:
            continue
        parsers[words[1]].parse_args(rest)  # raises UsageError for what is not there


def test_make_targets_exist(console_block, repository):
    targets = set(re.findall(r"^([\w-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    for command in commands(console_block.text):
        if command.startswith("make "):
            assert set(command.split()[1:]) <= targets


def test_what_asks_to_be_run_prints_what_it_says(page, page_blocks, tmp_path):
    """Named YAML blocks are files; commands and Python run beside them, in the page's order."""
    chosen = page_blocks(page)
    model = os.environ.get("KT_TEST_MODEL")
    if model is not None:
        (tmp_path / "model.gguf").symlink_to(model)
    skipped = 0
    for block in chosen:
        named = re.match(r"# ([\w-]+\.yaml)\n", block.text) if block.language == "yaml" else None
        if named is not None:
            (tmp_path / named[1]).write_text(block.text, encoding="utf-8")
        elif block.run and block.needs == "model" and model is None:
            skipped += 1
        elif block.run and block.language == "console":
            run_console(block, tmp_path)
        elif block.run:
            run_python(block, tmp_path)
    if skipped:
        pytest.skip(f"{skipped} of the page's blocks need KT_TEST_MODEL; the others are right")


def run_console(block, folder: Path):
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    if shutil.which("kt", path=environment["PATH"]) is None:
        pytest.skip("the kt command is not on the path")
    for piece in re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, expected = piece.partition("\n")
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert matches(expected, done.stdout), f"{block}: $ {command}\n{done.stdout}"


def matches(expected, actual):
    """Whether the lines are the same; a line ``…`` stands for any lines, ``…`` within for any text."""
    pattern = ""
    for line in expected.strip().splitlines():
        if line == "…":
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ ]*\n"
    text = "".join(f"{line}\n" for line in actual.strip().splitlines())
    return re.fullmatch(pattern, text) is not None


def run_python(block, folder: Path):
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block.text, str(block), "exec"), {"__name__": "example"})
    finally:
        os.chdir(before)
    assert printed.getvalue().strip()


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("", "", True),
        ("", "x", False),
        ("a\n…\nc\n", "a\nb\nb\nc", True),
        ("a\n…\nc\n", "a\nc\n", True),
        ("a …\n", "a b", True),
        ("a …\n", "a b\nc", False),
        ("a\n", "ab", False),
    ],
)
def test_the_comparison_compares(expected, actual, same):
    assert matches(expected, actual) is same
