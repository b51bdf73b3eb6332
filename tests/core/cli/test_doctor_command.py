"""``kt doctor``: what it shows, and when it says that the installation is wrong."""

from __future__ import annotations

import json

import pytest

from kt_core import Accepted, Rejected
from kt_core.cli import doctor, exit_codes, main
from kt_core.errors import Problem
from kt_core.registry import environment, machine, packages, probing, registry
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec


def judge(spec, env):
    return Accepted("AVX2") if spec.name.endswith("fast") else Rejected(("no AVX-512", "no luck"))


def complain(env):
    raise OSError("libtoy is not there")


TOY = fake_plugin(
    kernels=[kernel_spec("kt_toy.fast"), kernel_spec("kt_toy.slow")],
    probe=judge,
    report=lambda env: [f"libtoy 7 for {env.device}", "second line"],
)
RUDE = fake_plugin("rude", report=complain)
TERSE = fake_plugin("terse", report=lambda env: "one line\nand another")


@pytest.fixture
def report(monkeypatch, capsys):
    """Run ``kt doctor`` with these plugins in this environment."""

    def run(*plugins, args=(), torch="2.13.0+cpu", problems=(), **environ):
        found = fake_registry(*plugins, environ=environ)
        monkeypatch.setattr(registry, "default_registry", lambda: found)
        monkeypatch.setattr(doctor.os, "environ", environ)
        monkeypatch.setattr(machine, "gpus", lambda: ([], "nvidia-smi is not installed"))
        monkeypatch.setattr(packages, "out_of_range", lambda: list(problems))
        versions = {"torch": torch, "transformers": "5.24.0"}
        monkeypatch.setattr(packages, "installed_version", versions.get)
        monkeypatch.setattr(environment, "installed_version", versions.get)
        monkeypatch.setattr(probing, "torch_version", lambda: torch)
        code = main.main(["doctor", *args])
        return code, capsys.readouterr().out

    return run


def test_a_sound_installation_exits_0(report):
    code, out = report(TOY)
    assert code == 0
    assert out.rstrip().endswith("no problems found")
    for word in ("kt ", "Python ", "packages ", "system ", "CPU ", "flags ", "cores ", "memory "):
        assert f"\n{word}" in f"\n{out}"
    assert "torch 2.13.0+cpu, transformers 5.24.0" in out


def test_every_kernel_is_probed_on_each_device_it_names(report):
    _, out = report(TOY)
    assert "  kt_toy.fast            cpu   ok (AVX2)\n" in out
    assert "  kt_toy.slow            cpu   no: no AVX-512; no luck\n" in out
    assert (
        "  kt_core.torch_linear   cuda  no: the installed torch 2.13.0+cpu is built without" in out
    )


def test_reports_of_plugins_are_shown_and_a_failing_one_is_named(report):
    code, out = report(TOY, RUDE, TERSE)
    assert "  toy (kt-toy 1.0): ready\n    libtoy 7 for cpu\n    second line\n" in out
    assert "  terse (kt-terse 1.0): ready\n    one line\n    and another\n" in out
    assert "    kt_report failed: OSError: libtoy is not there\n" in out
    assert code == 0


def test_a_broken_plugin_exits_3(report):
    code, out = report(fake_plugin("bad", api=9))
    assert code == exit_codes.INSTALLATION
    assert '\nKT212 plugin "bad" (kt-bad 1.0) is incompatible: ' in out
    assert out.rstrip().endswith("1 problem(s)")


def test_a_package_outside_its_range_exits_3(report):
    problem = Problem("KT221", "transformers 4.0 is installed", help="pip install it")
    code, out = report(problems=[problem])
    assert code == exit_codes.INSTALLATION
    assert "\nKT221 transformers 4.0 is installed\n  help: pip install it\n" in out


def test_a_missing_torch_is_a_note_not_an_error(report):
    code, out = report(torch=None)
    assert code == 0
    assert "note: torch is not installed" in out
    assert 'pip install "kt-core[torch]"' in out
    assert "  kt_core.torch_linear   cpu   no: torch is not installed\n" in out


@pytest.mark.parametrize("value", ["1", "ON"])
def test_ktransformers_blis_switch_is_explained(report, value):
    code, out = report(CPUINFER_ENABLE_BLIS=value)
    assert code == 0
    assert "note: CPUINFER_ENABLE_BLIS is a build switch of KTransformers" in out
    assert "pip install kt-ops-amd-blis" in out


def test_variables_are_shown_but_no_secret(report):
    _, out = report(KT_X="yes", KT_API_KEY="hunter2", HOME="/root", CUDA_VISIBLE_DEVICES="0")
    assert "  KT_X=yes\n" in out
    assert "  KT_API_KEY=(set)\n" in out
    assert "  CUDA_VISIBLE_DEVICES=0\n" in out
    assert "hunter2" not in out
    assert "HOME" not in out


def test_masked_flags_are_not_shown(report):
    _, out = report(args=["--format", "json"])
    flags = json.loads(out)["cpu"]["flags"]
    if not flags:
        pytest.skip("this CPU has none of the flags that kernels look for")
    _, out = report(args=["--format", "json"], KT_CPU_FLAGS_MASK=flags[0])
    assert json.loads(out)["cpu"]["flags"] == flags[1:]


def test_gpus_are_shown(report, monkeypatch):
    gpu = machine.Gpu(0, "NVIDIA H200", 143771 << 20, 143000 << 20, "575.57", "9.0")
    found = fake_registry()
    text = "\n".join(doctor._text({**doctor.examine(found, {}, []), "gpus": [vars(gpu)]}))
    assert "GPU 0     NVIDIA H200, 140.4 GiB (139.6 GiB free), capability 9.0" in text


def test_json(report):
    code, out = report(TOY, fake_plugin("bad", api=9), args=["--format", "json"])
    found = json.loads(out)
    assert code == exit_codes.INSTALLATION
    assert found["no_gpu"] == "nvidia-smi is not installed"
    assert found["problems"][0]["code"] == "KT212"
    toy = next(plugin for plugin in found["plugins"] if plugin["name"] == "toy")
    assert toy["report"] == ["libtoy 7 for cpu", "second line"]
    slow = next(kernel for kernel in found["kernels"] if kernel["name"] == "kt_toy.slow")
    assert (slow["accepted"], slow["reasons"]) == (False, ["no AVX-512", "no luck"])
    assert found["cpu"]["threads"] >= 1


def test_the_real_thing_runs_without_importing_torch(child):
    code = (
        "import sys\nfrom kt_core.cli.main import main\n"
        "code = main(['doctor'])\n"
        "print(code, [n for n in ('torch', 'transformers', 'numpy') if n in sys.modules])"
    )
    done = child("-c", code, KT_PLUGINS="")
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr
