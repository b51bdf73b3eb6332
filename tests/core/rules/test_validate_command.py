"""``kt-validate``: what it takes, what it writes in each format, what it exits with."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys

import pytest

from kt_core.cli.validate import main

GOOD = "- match: {name: '^lm_head$'}\n  replace: {class: kt_core.Linear}\n"
WARNING = GOOD + GOOD
WRONG = "- match: {nmae: x}\n  replace: {class: kt_core.Linear, kwargs: {generate_device: gpu}}\n"
UNKNOWN = "- match: {name: x}\n  replace: {class: nobody.Knows}\n"
MISSING = "- match: {name: x}\n  replace: {class: kt_core.Experts, kwargs: {generate_op: KExpertsAMDInt8}}\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KT_PLUGINS", "")
    for name, text in {
        "good.yaml": GOOD,
        "warning.yaml": WARNING,
        "wrong.yaml": WRONG,
        "unknown.yaml": UNKNOWN,
        "missing.yaml": MISSING,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def run(files, capsys):
    from kt_core.registry.registry import default_registry

    def call(*words):
        default_registry.cache_clear()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    logger = logging.getLogger("kt_core")
    before = logger.handlers[:], logger.level, logger.propagate
    yield call
    logger.handlers[:], logger.level, logger.propagate = before
    default_registry.cache_clear()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["good.yaml"], 0),
        (["warning.yaml"], 0),
        (["warning.yaml", "--strict"], 1),
        (["wrong.yaml"], 1),
        (["unknown.yaml"], 1),
        (["missing.yaml"], 3),
        (["good.yaml", "missing.yaml"], 3),
        (["missing.yaml", "wrong.yaml"], 1),
        (["missing.yaml", "unknown.yaml"], 1),
        (["absent.yaml"], 1),
        ([], 2),
        (["--format", "xml", "good.yaml"], 2),
        (["--stric", "good.yaml", "--unknown"], 2),
    ],
)
def test_exit_codes(words, code, run):
    assert run(*words)[0] == code


def test_a_good_file_says_nothing(run):
    assert run("good.yaml") == (0, "", "")


def test_all_problems_of_all_files_in_one_run(run):
    code, out, err = run("wrong.yaml", "warning.yaml", "unknown.yaml")
    assert code == 1
    heads = [line for line in out.splitlines() if not line.startswith(" ")]
    assert [re.match(r"([^:]+:\d+:\d+): (KT\d{3})", head).groups() for head in heads] == [
        ("wrong.yaml:1:11", "KT116"),
        ("wrong.yaml:2:62", "KT135"),
        ("warning.yaml:3:10", "KT126"),
        ("unknown.yaml:2:20", "KT215"),
    ]
    assert "  help: name: x\n" in out
    assert err == "3 errors, 1 warning in 3 files\n"


def test_strict_turns_warnings_but_not_notes_into_errors(run, files):
    (files / "note.yaml").write_text(
        "- match: {name: 'attn$'}\n  replace: {class: kt_core.Attention, kwargs: {dump_enable: false}}\n"
    )
    assert run("note.yaml", "--strict")[0] == 0
    code, out, _ = run("warning.yaml", "--strict")
    assert code == 1
    assert "KT126 rule 2" in out
    assert "warning:" not in out


def test_folders_are_searched_and_files_checked_once(run, files):
    nested = files / "rules" / "llama"
    nested.mkdir(parents=True)
    (nested / "b.yml").write_text(WRONG)
    (nested / "a.yaml").write_text(WARNING)
    (nested / "c.txt").write_text("no rule file")
    (nested / ".hidden.yaml").write_text(WRONG)
    (files / "rules" / ".git").mkdir()
    (files / "rules" / ".git" / "x.yaml").write_text(WRONG)
    code, out, err = run("rules", nested / "a.yaml", "rules")
    assert code == 1
    paths = list(dict.fromkeys(re.findall(r"^([^\s:]+):\d", out, re.MULTILINE)))
    assert paths == [os.path.join("rules", "llama", name) for name in ("a.yaml", "b.yml")]
    assert err == "2 errors, 1 warning in 2 files\n"


def test_standard_input(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    code, out, _ = run("-")
    assert code == 1
    assert out.startswith("<stdin>:1:11: KT116 ")


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda folder: "warning.yml", "KT101", "did you mean warning.yaml?"),
        (lambda folder: "no/such/x.yaml", "KT101", "there is no folder no"),
        (lambda folder: (folder / "empty").mkdir() or "empty", "KT102", "no .yaml or .yml file"),
        (lambda folder: os.mkfifo(folder / "pipe") or "pipe", "KT101", "use - to read"),
        (lambda folder: "/dev/zero", "KT101", "a device or pipe"),
    ],
    ids=["near", "no-folder", "empty-folder", "fifo", "device"],
)
def test_what_cannot_be_read_is_said_at_once(make, code, says, run, files):
    status, out, _ = run(make(files))
    assert status == 1
    assert f" {code} " in out
    assert says in out


def test_an_unreadable_file(run, files):
    (files / "secret.yaml").write_text(GOOD)
    (files / "secret.yaml").chmod(0)
    if os.access(files / "secret.yaml", os.R_OK):
        pytest.skip("this user may read everything")
    status, out, _ = run("secret.yaml")
    assert status == 1
    assert "KT101 cannot read the rule file: Permission denied" in out


def test_json(run):
    code, out, err = run("wrong.yaml", "good.yaml", "--format", "json")
    data = json.loads(out)
    assert (code, err) == (1, "")
    assert data["version"] == 1
    assert data["files"] == ["wrong.yaml", "good.yaml"]
    assert data["summary"] == {"error": 2, "warning": 0, "note": 0}
    assert data["problems"][0] == {
        "code": "KT116",
        "severity": "error",
        "message": '"nmae" is not a key of match',
        "path": "wrong.yaml",
        "line": 1,
        "column": 11,
        "facts": ["keys: name, class"],
        "help": "name: x",
    }


def test_github(run, files):
    (files / "a,b:c.yaml").write_text(WRONG)
    code, out, err = run("a,b:c.yaml", "warning.yaml", "--format", "github")
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert lines[0] == (
        "::error file=a%2Cb%3Ac.yaml,title=KT116,line=1,col=11::"
        '"nmae" is not a key of match%0Akeys: name, class%0Ahelp: name: x'
    )
    assert lines[2].startswith("::warning file=warning.yaml,title=KT126,line=3,col=10::")


def test_sarif(run, files):
    (files / "mit leer.yaml").write_text(WRONG)
    code, out, _ = run("mit leer.yaml", "warning.yaml", "absent.yaml", "--format", "sarif")
    assert code == 1
    log = json.loads(out)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (found,) = log["runs"]
    driver = found["tool"]["driver"]
    assert driver["name"] == "kt-validate"
    assert [rule["id"] for rule in driver["rules"]] == ["KT101", "KT116", "KT126", "KT135"]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
    assert found["columnKind"] == "unicodeCodePoints"
    levels = [(r["ruleId"], r["level"]) for r in found["results"]]
    assert levels == [
        ("KT116", "error"),
        ("KT135", "error"),
        ("KT126", "warning"),
        ("KT101", "error"),
    ]
    for result in found["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
    place = found["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "mit%20leer.yaml"
    assert place["region"] == {"startLine": 1, "startColumn": 11}
    whole = found["results"][3]["locations"][0]["physicalLocation"]
    assert "region" not in whole
    assert [entry["location"]["uri"] for entry in found["artifacts"]] == [
        "mit%20leer.yaml",
        "warning.yaml",
        "absent.yaml",
    ]


@pytest.mark.parametrize("style", ["json", "sarif"])
def test_machines_get_a_document_when_nothing_is_wrong(style, run):
    code, out, err = run("good.yaml", "--format", style)
    assert (code, err) == (0, "")
    assert json.loads(out)


def test_help_names_the_exit_codes(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "exit codes: 0 no errors, 1 a file is wrong, 2 wrong usage" in out


def test_no_colour_and_nothing_that_steers_a_terminal(run, files):
    (files / "esc.yaml").write_text(
        '- match: {name: "\\e[31mred"}\n  replace: {class: "\\u202ex"}\n'
    )
    _, out, _ = run("esc.yaml")
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_both_commands_are_one(files):
    outcomes = {
        subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for command in (
            [sys.executable, "-m", "kt_core.cli", "validate", "wrong.yaml"],
            [sys.executable, "-c", "from kt_core.cli.validate import main; main(['wrong.yaml'])"],
        )
    }
    assert len(outcomes) == 1
    assert "KT116" in outcomes.pop()


def test_the_pre_commit_hook_runs_the_command(repository):
    import tomllib

    import yaml

    (hook,) = yaml.safe_load((repository / ".pre-commit-hooks.yaml").read_text())
    scripts = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert hook["entry"] in scripts
    for path in ("rules/llama/cpu.yaml", "deploy/rules/x.yml"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "docker-compose.yaml")
