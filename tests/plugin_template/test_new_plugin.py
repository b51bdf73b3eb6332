"""``kt new-plugin``: which names it takes, what it writes, what it refuses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from kt_core.cli.main import main
from kt_core.errors import UsageError
from kt_core.templates.names import package_of
from kt_core.templates.render import COMPUTES, LICENSES, Choice, render

COMBINATIONS = [(kind, native) for kind, natives in COMPUTES.items() for native in natives]


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def files(request):
    kind, native = request.param
    return render(Choice("Kt.Toy-Ops", kind, native, author="A. N. Author"))


def test_nothing_of_the_template_is_left(files):
    for path, text in files.items():
        assert not re.search(r"plugin.template|@(?!INPUT|OUTPUT)[A-Z_]+@", path + text), path


def test_a_distribution_is_complete(files):
    home = "src/kt_toy_ops"
    assert {"LICENSE", "README.md", "pyproject.toml", "meson.build", ".gitignore"} <= files.keys()
    assert {f"{home}/plugin.py", f"{home}/rules/kt_toy_ops.yaml"} <= files.keys()
    assert any(path.startswith(".github/workflows/") for path in files)
    assert any(path.startswith("tests/test_") for path in files)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "Kt.Toy-Ops"
    assert project["entry-points"]["kt_core.plugins"] == {"kt_toy_ops": "kt_toy_ops.plugin"}
    assert project["authors"] == [{"name": "A. N. Author"}]


def test_every_file_of_the_package_is_shipped(files):
    listed = set(re.findall(r"'([\w./]+)',", files["src/kt_toy_ops/meson.build"])) - {"kt_toy_ops"}
    inside = {path.removeprefix("src/kt_toy_ops/") for path in files if "src/kt_toy_ops/" in path}
    assert listed == inside - {"meson.build"}


def test_python_is_python_and_lines_are_short(files):
    for path, text in files.items():
        if path.endswith((".py", ".pyi")):
            ast.parse(text)
            assert max(map(len, text.splitlines()), default=0) <= 110, path


def test_registration_imports_nothing_heavy(files):
    """plugin.py and backend.py are imported whenever kt starts."""
    for name in ("plugin", "backend"):
        text = files.get(f"src/kt_toy_ops/{name}.py", "")
        top = [
            node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names = {getattr(node, "module", None) or node.names[0].name for node in top}
        assert not names & {"torch", "numpy", "transformers", "cffi", "triton"}


@pytest.mark.parametrize(("kind", "native"), COMBINATIONS)
def test_linters_have_nothing_to_say(kind, native, tmp_path):
    pytest.importorskip("ruff")
    folder = tmp_path / "it"
    asked = ("kt-toy", "--kind", kind, "--native", native, "--output", str(folder))
    assert main(["new-plugin", *asked]) == 0
    chosen = ("--select", "B,D1,E,F,I,UP", "--ignore", "D103,D107,E501")
    for command in (("check", *chosen), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("license", LICENSES)
def test_a_licence_is_chosen(license):
    files = render(Choice("kt-toy", license=license, author="A. N. Author", year=2031))
    assert tomllib.loads(files["pyproject.toml"])["project"]["license"] == license
    text = files["LICENSE"]
    assert ("2031" in text and "A. N. Author" in text) == (license != "Apache-2.0")


@pytest.mark.parametrize(
    ("name", "package"),
    [("kt-toy", "kt_toy"), ("Kt.Toy_2", "kt_toy_2"), ("acme-kernels", "acme_kernels"), ("x", "x")],
)
def test_names_become_packages(name, package):
    assert package_of(name) == package


@pytest.mark.parametrize(
    "name",
    ["", "-x", "x-", "kt toy", "kt/toy", "../kt", "ünïcode", "1kt", "2-toy", "class", "torch", "json",
     "kt-core", "kt_core_extra", "KT-OPS-CPU", "kt_ops_cuda", "x" * 65, "a\nb", "kt-toy[c]", "kt;x"],
)  # fmt: skip
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(UsageError) as caught:
        package_of(name)
    assert caught.value.code == "KT740"
    assert caught.value.problems[0].help


def test_a_kind_that_is_not_written_that_way(tmp_path, capsys):
    code = main(["new-plugin", "kt-toy", "--kind", "rules", "--native", "c",
                 "--output", str(tmp_path / "it")])  # fmt: skip
    said = capsys.readouterr().err
    assert code == 2
    assert "KT741" in said
    assert "--kind rules: none" in said
    assert not (tmp_path / "it").exists()


def test_nothing_is_overwritten(tmp_path, capsys):
    folder = tmp_path / "kt-toy"
    folder.mkdir()
    assert main(["new-plugin", "kt-toy", "--output", str(folder)]) == 0
    (folder / "README.md").write_text("mine")
    assert main(["new-plugin", "kt-toy", "--output", str(folder)]) == 2
    assert (folder / "README.md").read_text() == "mine"
    assert "KT742" in capsys.readouterr().err


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / "kt-toy").write_text("a file")
    assert main(["new-plugin", "kt-toy", "--output", str(tmp_path / "kt-toy")]) == 2
    assert main(["new-plugin", "kt-toy", "--output", str(tmp_path / "kt-toy" / "below")]) == 2
    assert capsys.readouterr().err.count("KT742") == 2


def test_the_folder_is_called_like_the_plugin(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "kt-toy", "--native", "c"]) == 0
    assert (tmp_path / "kt-toy" / "csrc" / "kt_toy.c").is_file()
    assert "next: cd kt-toy" in capsys.readouterr().out
