"""``kt`` itself: finding commands, exit codes, and what happens when something goes wrong."""

from __future__ import annotations

import importlib
import logging
import signal
import subprocess
import sys
from types import ModuleType

import pytest

import kt_core
from kt_core.cli import exit_codes, main
from kt_core.cli.main import COMMANDS, Command
from kt_core.errors import PlanError, PluginError, Problem, RuleError, Severity, UsageError


@pytest.fixture
def command(monkeypatch):
    """Put a command ``kt x`` in place whose ``run`` is the function given."""

    def install(run, add_arguments=lambda parser: None):
        module = ModuleType("kt_test_command")
        module.__doc__ = "A test's command."
        module.add_arguments, module.run = add_arguments, run
        monkeypatch.setitem(sys.modules, "kt_test_command", module)
        monkeypatch.setattr(main, "COMMANDS", {**COMMANDS, "x": Command("kt_test_command", "x")})

    yield install
    logger = logging.getLogger("kt_core")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def raising(error):
    def run(args):
        raise error

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there(name):
    module = importlib.import_module(COMMANDS[name].module)
    parser = main.Parser(prog=name, conflict_handler="resolve")
    module.add_arguments(parser)
    assert callable(module.run)
    assert parser.format_help()


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"kt {kt_core.__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(capsys, argv):
    assert main.main(argv) == 0
    out = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"  {name}" in out
        assert entry.summary in out


@pytest.mark.parametrize("argv", [["explain", "--help"], ["help", "explain"]])
def test_help_of_a_command(capsys, argv):
    assert main.main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: kt explain")


def test_no_command_is_a_usage_error(capsys):
    assert main.main([]) == exit_codes.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: kt" in captured.err


def test_an_unknown_command_is_a_usage_error_with_the_nearest(capsys):
    assert main.main(["valdate", "x.yaml"]) == exit_codes.USAGE
    err = capsys.readouterr().err
    assert err.startswith('KT701 "valdate" is not a command of kt\n')
    assert "help: did you mean kt validate?" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plugins", "--fromat", "json"], "did you mean --format?"),
        (["plugins", "--format", "xml"], "invalid choice: 'xml'"),
        (["--wrong"], "unrecognized arguments: --wrong"),
        (["-v", "-q", "explain"], "not allowed with"),
    ],
)
def test_a_wrong_option_is_kt700(capsys, argv, words):
    assert main.main(argv) == exit_codes.USAGE
    err = capsys.readouterr().err
    assert err.startswith("KT700 kt")
    assert words in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuleError.of("KT101", "x"), exit_codes.INPUT),
        (PluginError.of("KT210", "x"), exit_codes.INSTALLATION),
        (PlanError.of("KT301", "x"), exit_codes.INPUT),
        (UsageError.of("KT700", "x"), exit_codes.USAGE),
        (KeyboardInterrupt(), exit_codes.INTERRUPTED),
        (IndexError("list index"), exit_codes.INTERNAL),
    ],
)
def test_every_error_becomes_its_exit_code(command, error, code):
    command(raising(error))
    assert main.main(["x"]) == code


def test_a_coded_error_is_rendered_on_stderr(command, capsys):
    command(raising(PlanError.of("KT301", "no room", facts=["need 3 GiB"], help="buy some")))
    main.main(["x"])
    captured = capsys.readouterr()
    assert captured.err == "KT301 no room\n  need 3 GiB\n  help: buy some\n"
    assert captured.out == ""


def test_a_fault_of_ours_is_kt790_and_says_where(command, capsys):
    command(raising(IndexError("list index out of range")))
    assert main.main(["x"]) == exit_codes.INTERNAL
    err = capsys.readouterr().err
    assert err.startswith("KT790 kt failed unexpectedly: IndexError: list index out of range\n")
    assert "test_main_command.py:" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_kt_debug_shows_tracebacks(command, capsys, monkeypatch, value, shown):
    monkeypatch.setenv("KT_DEBUG", value)
    command(raising(PlanError.of("KT301", "no room")))
    main.main(["x"])
    assert ("Traceback" in capsys.readouterr().err) is shown


@pytest.mark.parametrize("module", ["torch", "transformers", "safetensors.torch"])
def test_a_missing_extra_is_one_sentence(command, capsys, module):
    command(raising(ModuleNotFoundError(f"No module named {module!r}", name=module)))
    assert main.main(["x"]) == exit_codes.INSTALLATION
    package = module.partition(".")[0]
    err = capsys.readouterr().err
    assert err.startswith(f"KT220 kt x needs {package}, which is not installed\n")
    assert 'help: pip install "kt-core[torch]"' in err


def test_any_other_missing_module_is_a_fault(command, capsys):
    command(raising(ModuleNotFoundError("No module named 'abc'", name="abc")))
    assert main.main(["x"]) == exit_codes.INTERNAL


@pytest.mark.parametrize(
    ("argv", "levels"),
    [
        (["x"], ["warning", "error"]),
        (["-q", "x"], ["error"]),
        (["x", "--quiet"], ["error"]),
        (["-v", "x"], ["info", "warning", "error"]),
        (["x", "-v", "-v"], ["debug", "info", "warning", "error"]),
        (["-v", "x", "-v"], ["debug", "info", "warning", "error"]),
    ],
)
def test_the_log_goes_to_stderr_as_loud_as_asked(command, capsys, argv, levels):
    def run(args):
        logger = logging.getLogger("kt_core.anything")
        for level in ("debug", "info", "warning", "error"):
            getattr(logger, level)("at %s", level)
        return 0

    command(run)
    assert main.main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split(" at ")[1] for line in captured.err.splitlines()] == levels


def test_a_command_may_have_a_v_of_its_own(command):
    seen = []
    command(
        lambda args: seen.append(args.v) or 0,
        lambda parser: parser.add_argument("-v", dest="v", type=int),
    )
    assert main.main(["x", "-v", "3"]) == 0
    assert seen == [3]


def test_standalone_runs_one_command_under_its_own_name(command, capsys):
    command(lambda args: 0)
    assert main.standalone("x", ["--nonsense"]) == exit_codes.USAGE
    assert capsys.readouterr().err.startswith("KT700 kt-x: unrecognized arguments: --nonsense")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((), 0),
        (("KT101",), 1),
        (("KT210", "KT211"), 3),
        (("KT101", "KT210"), 1),
        (("KT101", "KT700"), 2),
        (("KT530",), 1),
    ],
)
def test_exit_code_of_several_problems(codes, expected):
    assert exit_codes.exit_code(Problem(code, "x") for code in codes) == expected


def test_warnings_do_not_count():
    warning = Problem("KT101", "x", severity=Severity.WARNING)
    assert exit_codes.exit_code([warning]) == 0
    assert exit_codes.exit_code([warning, Problem("KT210", "x")]) == 3


def test_a_reader_that_leaves_is_no_error(tmp_path):
    source = (
        "import sys\nfrom kt_core.cli.main import guarded\n"
        "def run():\n"
        "    for i in range(200000):\n"
        "        print(i)\n"
        "    return 0\n"
        "sys.exit(guarded(run))\n"
    )
    script = tmp_path / "talk.py"
    script.write_text(source)
    talker = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    talker.stdout.readline()
    talker.stdout.close()
    assert talker.wait(timeout=60) == exit_codes.BROKEN_PIPE
    assert talker.stderr.read() == b""
    talker.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_ctrl_c_ends_quietly(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text(
        "import signal, sys, time\nfrom kt_core.cli.main import guarded\n"
        # A shell's background job would leave the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def run():\n    print('up', flush=True)\n    time.sleep(60)\n    return 0\n"
        "sys.exit(guarded(run))\n"
    )
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as waiter:
        waiter.stdout.readline()
        waiter.send_signal(signal.SIGINT)
        assert waiter.wait(timeout=60) == exit_codes.INTERRUPTED
        assert waiter.stderr.read() == b""


def test_a_narrow_terminal_gets_escapes_instead_of_a_crash(kt):
    done = kt("--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "COMMAND \\u2026" in done.stdout
