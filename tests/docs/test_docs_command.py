"""kt docs: offline, plain, and with a next step for whoever misspells."""

from __future__ import annotations

import webbrowser

import pytest

from kt_core.cli.main import main
from kt_core.errors.catalogue import codes


@pytest.fixture
def docs(capsys):
    def run(*arguments):
        status = main(["docs", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_it_lists_the_topics(docs):
    status, out, err = docs()
    assert (status, err) == (0, "")
    for name in ("quick-start", "plans", "migration", "errors", "kt-ops-cpu", "changelog"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("quick-start", "Quick start"),
        ("Quick Start", "Quick start"),
        ("quick_start.md", "Quick start"),
        ("KT210", "KT210: "),
        ("kt210", "KT210: "),
        ("plan", "kt plan"),
        ("kt_core.Linear", "kt_core.Linear"),
        ("kt_core.torch_experts", "kt_core.torch_experts"),
    ],
)
def test_a_word_is_found(word, first, docs):
    status, out, _ = docs(word)
    assert status == 0
    assert out.startswith(first)
    assert "](" not in out
    assert "**" not in out


def test_a_section_is_that_section_alone(docs):
    _, out, _ = docs("validate")
    assert "kt plan" not in out
    assert "--strict" in out


def test_a_code_says_what_kt_explain_says_and_where_more_is_said(docs, capsys):
    from kt_core.cli.main import main as kt

    for code in codes().values():
        _, out, _ = docs(code.id)
        plain = " ".join(out.split())
        assert f"{code.id}: " in plain
        assert " ".join(code.explanation.replace("`", "").split()) in plain.replace("`", "")
        kt(["explain", code.id])
        explained = capsys.readouterr().out
        assert " ".join(code.example.split()) in " ".join(explained.split())
        assert " ".join(code.example.split()) in plain
    assert "spoken of in: " in docs("KT305")[1]


def test_an_unknown_word_gets_suggestions_and_pages_that_mention_it(docs):
    status, _, err = docs("quick-strat")
    assert status == 2
    assert "KT750" in err
    assert "did you mean kt docs quick-start?" in err
    _, _, err = docs("yaml-language-server")
    assert "pages that mention it: editors" in err
    assert "help: kt docs editors" in err
    assert "\x1b" not in docs("\x1b[31m")[2]


def test_markdown_is_the_page_as_written(docs, repository):
    _, out, _ = docs("plans", "--markdown")
    assert out == (repository / "docs/plans.md").read_text(encoding="utf-8")


def test_the_browser_opens_the_built_site(docs, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setenv("KT_DOCS_SITE", str(tmp_path))
    status, _, err = docs("--browser")
    assert (status, "KT752" in err, opened) == (2, True, [])
    (tmp_path / "index.html").write_text("<p>")
    assert docs("--browser")[0] == 0
    assert docs("KT210", "--browser")[0] == 0
    assert docs("plan", "--browser")[0] == 0
    base = tmp_path.resolve().as_uri()
    assert opened == [
        f"{base}/index.html",
        f"{base}/errors.html#kt210",
        f"{base}/commands.html",
    ]


def test_a_person_gets_a_pager_and_a_pipe_does_not(docs, monkeypatch, tmp_path):
    import sys

    log = tmp_path / "shown"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {log}\n")
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    assert "Quick start" in docs("quick-start")[1]
    assert not log.exists()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert docs("quick-start")[1] == ""
    assert log.read_text().startswith("\x1b[1mQuick start\x1b[0m")
