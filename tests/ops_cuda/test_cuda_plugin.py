"""What the plugin registers, and what the probe says on machines of every kind."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kt_core.registry.specs import Accepted, ProbeEnv, Rejected
from kt_ops_cuda import plugin, probe

BUILD = "13.0 sm_80 sm_90a compute_120"


def _env(device="cuda", **environ):
    return ProbeEnv(device, frozenset(), environ)


def _probe(monkeypatch, found, build=BUILD, torch="2.13.0", **environ):
    class Library:
        @staticmethod
        def kt_build():
            return build.encode()

    def gpus():
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(probe.native, "library", lambda: Library)
    monkeypatch.setattr(probe, "gpus", gpus)
    monkeypatch.setattr(probe.metadata, "version", lambda name: torch)
    return plugin.kt_probe(plugin.kt_register_kernels()[0], _env(**environ))


def test_names_and_aliases():
    names = {spec.name: spec for spec in plugin.kt_register_kernels()}
    assert set(names) == {
        "kt_ops_cuda.marlin",
        "kt_ops_cuda.experts",
        "kt_ops_cuda.gguf_linear",
        "kt_ops_cuda.gguf_experts",
    }
    assert {"KLinearMarlin", "VLinearMarlin"} <= set(names["kt_ops_cuda.marlin"].aliases)
    assert "KExpertsMarlin" in names["kt_ops_cuda.experts"].aliases


def test_an_h200_is_accepted(monkeypatch):
    result = _probe(monkeypatch, [("NVIDIA H200", 90)])
    assert result == Accepted("NVIDIA H200, compute capability 9.0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"found": OSError("absent")}, "no NVIDIA driver"),
        ({"found": []}, "no GPU"),
        ({"found": [("Tesla V100", 70)]}, "no code for Tesla V100 \\(7.0\\)"),
        ({"found": [("NVIDIA B300", 103)], "build": "13.0 sm_90a"}, "no code for NVIDIA B300"),
        ({"found": [("NVIDIA H200", 90)], "torch": "2.13.0+cpu"}, "without CUDA"),
        ({"found": [("NVIDIA H200", 90)], "CUDA_VISIBLE_DEVICES": ""}, "hides every GPU"),
    ],
)
def test_why_it_is_rejected(monkeypatch, arguments, words):
    result = _probe(monkeypatch, **arguments)
    assert isinstance(result, Rejected)
    assert result.help
    assert re.search(words, "; ".join(result.reasons))


def test_other_devices_are_rejected():
    result = plugin.kt_probe(plugin.kt_register_kernels()[0], _env("cpu"))
    assert isinstance(result, Rejected)
    assert result.help == "device: cuda"


@pytest.mark.parametrize(
    ("build", "capability", "runs"),
    [
        ("13.0 sm_80", 80, True),
        ("13.0 sm_80", 86, True),
        ("13.0 sm_86", 80, False),
        ("13.0 sm_80", 90, False),
        ("13.0 sm_90a", 90, True),
        ("13.0 sm_90a", 100, False),
        ("13.0 sm_100 compute_120", 121, True),
        ("13.0 compute_120", 100, False),
        ("unknown", 90, False),
    ],
)
def test_which_code_runs_where(build, capability, runs):
    assert probe.covers(build, capability) is runs


def test_the_report_never_raises():
    lines = list(plugin.kt_report(_env()))
    assert lines
    assert all(isinstance(line, str) for line in lines)


def test_importing_the_plugin_imports_no_torch():
    code = "import sys, kt_ops_cuda.plugin, kt_ops_cuda.probe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
