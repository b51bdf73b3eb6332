"""Probes in a process of their own, time limits, traces, and leaving a plugin out."""

from __future__ import annotations

import json
import signal
import time

import pytest

from kt_core.registry.isolated import PluginTimeoutError, isolated, time_limit, timeout_of
from kt_core.testing.registry import write_distribution

PLUGIN = """
from kt_core import Accepted, KernelSpec, Rejected, hookimpl
KT_PLUGIN_API = 1

@hookimpl
def kt_register_kernels():
    return [KernelSpec(f"{package}.{{name}}", "kt_core.operators.torch_linear:TorchLinear", "linear",
                       ("cpu",), ("*",), "a kernel") for name in ("one", "two", "three")]

@hookimpl
def kt_probe(spec, env):
    import os, signal, sys, time
    print("chatter", flush=True)
    os.write(1, b"native chatter")
    if spec.name.endswith(".two"):
        {two}
    return Accepted(spec.name)
"""
TWO = {
    "fine": "pass",
    "illegal": "os.kill(os.getpid(), signal.SIGILL)",
    "crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "exit": "os._exit(3)",
    "hang": "time.sleep(600)",
    "spin": "signal.alarm(0)\n        while True: pass",
    "quits": "sys.exit(4)",
}
SAYS = {
    "fine": (),
    "illegal": ("its probe killed the process: SIGILL, an illegal instruction",),
    "crash": ("its probe killed the process: SIGSEGV, a memory fault",),
    "exit": ("its probe killed the process: the process ended with 3",),
    "hang": ("its probe gave no answer within 1 s",),
    "spin": ("its probe gave no answer within 1 s",),
    "quits": ("its probe failed: SystemExit: 4",),
}


def install(folder, word: str, two: str = "pass", source: str = PLUGIN) -> None:
    package = f"kt_{word}"
    write_distribution(
        folder,
        f"kt-{word}",
        plugins={package: f"{package}.plugin"},
        files={f"{package}/plugin.py": source.format(package=package, two=two)},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for word, two in TWO.items():
        install(folder, word, two)
    return folder


@pytest.fixture(scope="module")
def probed(site, kt):
    options = {"path": [site], "timeout": 300, "KT_PLUGIN_TIMEOUT": "1"}
    names = [f"kt_{word}" for word in TWO]
    done = kt("plugins", "--probe", "--format", "json", *names, **options)
    assert done.returncode == 3, done.stderr
    return {record["name"]: record["probes"] for record in json.loads(done.stdout)}


@pytest.mark.parametrize("word", TWO)
def test_a_probe_costs_nobody_else_anything(word, probed):
    answers = {
        a["name"].rpartition(".")[2]: a for a in probed[f"kt_{word}"] if a["asked"] == "on cpu"
    }
    assert answers["one"]["detail"] == f"kt_{word}.one"
    assert answers["three"]["detail"] == f"kt_{word}.three"
    assert tuple(answers["two"]["reasons"]) == SAYS[word]
    assert answers["two"]["accepted"] == (word == "fine")
    if word != "fine":
        assert answers["two"]["help"]


def test_the_doctor_survives(site, kt):
    done = kt("doctor", path=[site], KT_PLUGINS="kt_illegal", timeout=120)
    assert "kt_illegal.two" in done.stdout
    assert "SIGILL, an illegal instruction" in done.stdout
    assert "kt_illegal.three" in done.stdout


def test_a_report_that_crashes_is_a_line(tmp_path, kt):
    source = (
        "from kt_core import hookimpl\nKT_PLUGIN_API = 1\n"
        "@hookimpl\ndef kt_report(env):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGILL)\n"
    )
    install(tmp_path, "dies", source=source)
    install(
        tmp_path, "tells", source=source.split("    import os")[0] + "    return ['all is well']\n"
    )
    done = kt("doctor", path=[tmp_path], KT_PLUGINS="kt_dies,kt_tells", timeout=120)
    assert "kt_report failed: its report killed the process: SIGILL" in done.stdout
    assert "all is well" in done.stdout


def test_a_rule_file_that_is_not_there(tmp_path, kt, child):
    source = (
        "from kt_core import hookimpl\nKT_PLUGIN_API = 1\n@hookimpl\ndef kt_register_rules():\n"
        "    return ['{package}:rules/llama.yaml', '{package}.nowhere:llama.yaml']\n"
    )
    install(tmp_path, "bare", source=source)
    done = kt("plugins", "--probe", "kt_bare", path=[tmp_path], timeout=60)
    assert done.returncode == 3
    assert "kt_bare:rules/llama.yaml rule file: no: it is not there" in done.stdout
    assert "kt_bare.nowhere:llama.yaml rule file: no: ModuleNotFoundError" in done.stdout
    assert "help: pip install --force-reinstall kt-bare" in done.stdout
    code = (
        "from kt_core.rules import select_rules\n"
        "print(select_rules('LlamaForCausalLM', device='cpu').path)"
    )
    done = child("-c", code, path=[tmp_path])
    assert done.stdout == "rules/llama/cpu.yaml\n", done.stderr


def test_probes_of_a_registry_in_memory_run_here(monkeypatch):
    from kt_core.registry import registry as module
    from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec

    spec = kernel_spec("kt_toy.linear")
    registry = fake_registry(fake_plugin(kernels=[spec], probe=lambda spec, env: None))
    monkeypatch.setattr(module.Registry, "ask_apart", lambda *a, **k: pytest.fail("asked apart"))
    registry.probe_each([(spec, "cpu")])


# Time limits


def test_a_time_limit_ends_a_wait():
    start = time.perf_counter()
    _, error = isolated(lambda: limited(0.05, lambda: time.sleep(30)))
    assert isinstance(error, PluginTimeoutError)
    assert time.perf_counter() - start < 5


def limited(seconds, call):
    with time_limit(seconds):
        return call()


def test_a_time_limit_leaves_nothing_behind():
    before = signal.getsignal(signal.SIGALRM)
    assert limited(30, lambda: "done") == "done"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_timer_that_runs_already_is_left_alone():
    signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        assert limited(0.01, lambda: time.sleep(0.05)) is None
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_plugins_cannot_swallow_it():
    def stubborn():
        try:
            time.sleep(30)
        except Exception:  # noqa: BLE001 - what plugins do
            return "swallowed"
        return "done"

    _, error = isolated(lambda: limited(0.05, stubborn))
    assert isinstance(error, PluginTimeoutError)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, 10), ("2.5", 2.5), ("0", 0), ("-1", 10), ("soon", 10), ("inf", 10), ("nan", 10)],
)
def test_the_limit_is_a_number(value, seconds):
    assert timeout_of({} if value is None else {"KT_PLUGIN_TIMEOUT": value}) == seconds


def test_hooks_have_the_same_limit(tmp_path, kt):
    source = (
        "import time\nfrom kt_core import hookimpl\nKT_PLUGIN_API = 1\n"
        "@hookimpl\ndef kt_register_kernels():\n    time.sleep(60)\n    return []\n"
    )
    install(tmp_path, "slow", source=source)
    done = kt("plugins", "kt_slow", path=[tmp_path], KT_PLUGIN_TIMEOUT="1", timeout=60)
    assert done.returncode == 3
    assert "KT211 its registration hooks: not done after 1 s" in done.stdout
    assert "KT_PLUGIN_TIMEOUT=60" in done.stdout


def test_an_editable_plugin_may_take_its_time(tmp_path, kt):
    """It may compile itself at import."""
    source = "import time\ntime.sleep(1.5)\n" + PLUGIN
    install(tmp_path, "edits", source=source)
    info = tmp_path / "kt_edits-1.0.dist-info" / "direct_url.json"
    info.write_text('{"dir_info": {"editable": true}, "url": "file:///home/me/kt-edits"}')
    done = kt("plugins", "kt_edits", path=[tmp_path], KT_PLUGIN_TIMEOUT="1", timeout=120)
    assert done.returncode == 0, done.stdout
    info.unlink()
    done = kt("plugins", "kt_edits", path=[tmp_path], KT_PLUGIN_TIMEOUT="1", timeout=120)
    assert "not done after 1 s" in done.stdout


def test_a_slow_import_is_noted(tmp_path, kt):
    install(tmp_path, "lazy", source="import time\ntime.sleep(0.3)\n" + PLUGIN)
    done = kt("plugins", "kt_lazy", path=[tmp_path], timeout=60)
    assert done.returncode == 0
    assert "s to register, which slows down every start" in done.stdout


# Traces, and leaving plugins out


def test_a_trace_shows_imports_and_calls(site, kt):
    done = kt("plugins", path=[site], KT_TRACE_PLUGINS="1", KT_PLUGINS="kt_fine")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "kt_fine" in line]
    assert lines[0].startswith("kt: kt_fine (kt-fine 1.0): import kt_fine.plugin: done, ")
    assert lines[1].startswith("kt: kt_fine (kt-fine 1.0): kt_register_kernels(): 3 items, ")
    assert all(line.endswith(" ms") for line in lines)
    assert "kt: " not in done.stdout


@pytest.mark.parametrize("value", ["", "0"])
def test_no_trace_unless_asked_for(site, kt, value):
    done = kt("plugins", path=[site], KT_TRACE_PLUGINS=value, KT_PLUGINS="kt_fine")
    assert done.stderr == ""


def states(kt, site, setting):
    done = kt("plugins", "--format", "json", path=[site], KT_PLUGINS=setting)
    assert done.returncode == 0, done.stderr
    return {record["name"]: record["state"] for record in json.loads(done.stdout)}


def test_one_plugin_is_left_out(site, kt):
    found = states(kt, site, "-kt_hang")
    assert found["kt_hang"] == "disabled"
    assert all(found[f"kt_{word}"] == "ready" for word in TWO if word != "hang")
    assert states(kt, site, "-kt-hang, -KT_Spin")["kt_spin"] == "disabled"


def test_what_is_left_out_says_how_to_get_it_back(site, kt, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- match: {class: torch.nn.Linear}\n"
        "  replace: {class: kt_core.Linear, kwargs: {generate_op: kt_hang.one}}\n"
    )
    done = kt("validate", str(rules), path=[site], KT_PLUGINS="-kt_hang")
    assert done.returncode == 3
    assert "KT217" in done.stdout + done.stderr
    assert "help: take -kt_hang out of KT_PLUGINS" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("-kt_hagn", 'names what is not installed: "kt_hagn"'),
        ("kt_fine,-kt_hang", "lists both plugins that may load and plugins that may not"),
    ],
)
def test_a_wrong_list_is_an_error(site, kt, setting, says):
    done = kt("plugins", path=[site], KT_PLUGINS=setting)
    assert done.returncode == 3
    assert "KT218" in done.stderr
    assert says in done.stderr


def test_a_misspelt_name_to_leave_out_is_corrected(site, kt):
    done = kt("plugins", path=[site], KT_PLUGINS="-kt_hagn")
    assert "help: KT_PLUGINS=-kt-hang" in done.stderr


def test_two_versions_side_by_side_are_both_named(tmp_path, kt):
    for version in ("1.0", "2.0"):
        write_distribution(
            tmp_path / version,
            "kt-twice",
            version,
            plugins={"kt_twice": "kt_twice.plugin"},
            files={"kt_twice/plugin.py": PLUGIN.format(package="kt_twice", two="pass")},
        )
    folders = [tmp_path / "1.0", tmp_path / "2.0"]
    shown = [kt("plugins", "kt-twice", path=order).stdout for order in (folders, folders[::-1])]
    for text in shown:
        assert "kt-twice is installed in several versions, 1.0 and 2.0" in text
        for version in ("1.0", "2.0"):
            assert f"kt-twice {version} in {tmp_path / version}" in text
        assert "help: pip uninstall kt-twice until none is left" in text


def test_verbose_shows_all_in_full(site, kt):
    done = kt("plugins", "--verbose", path=[site], KT_PLUGINS="kt_fine")
    assert done.returncode == 0
    assert "kt_fine: ready\n  distribution: kt-fine 1.0\n" in done.stdout
    assert f"found in: {site}" in done.stdout
