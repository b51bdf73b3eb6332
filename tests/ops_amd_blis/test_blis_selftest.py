"""``kt-blis-selftest``: exit codes and report."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kt_ops_amd_blis import selftest


def run(*arguments, **environ):
    command = [sys.executable, "-m", "kt_ops_amd_blis.selftest", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environ, timeout=300
    )


@pytest.mark.slow
@pytest.mark.usefixtures("blis")
def test_passes_and_reports():
    done = run("--format", "json", "--seconds", "0.001")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["version"]
    assert report["threads"] >= 1
    names = [check["name"] for check in report["checks"]]
    for rows in selftest.ROWS:
        assert f"decode M={rows} K=7168 N=2048, reordered B" in names
        assert f"prefill M={rows} K=7168 N=2048, plain B" in names
    assert all(check["passed"] for check in report["checks"])
    assert all(check["gops"] > 0 for check in report["checks"] if "reordered" in check["name"])


@pytest.mark.usefixtures("blis")
def test_a_mismatch_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "_products", lambda seconds: iter([]))
    monkeypatch.setattr(selftest, "_orders", lambda: iter([selftest.Check("a product", False)]))
    assert selftest.main([]) == 1
    out = capsys.readouterr().out
    assert "FAIL a product" in out
    assert "6 of 7 checks equal the reference" in out


@pytest.mark.usefixtures("blis")
def test_a_wrong_result_is_noticed(monkeypatch):
    """The check itself can fail: one product off by one in one place."""
    from kt_ops_amd_blis import batch_gemm

    right = batch_gemm.prefill_cblas_gemm_s8s8s32

    def wrong(*arguments):
        right(*arguments)
        c = next(a for a in reversed(arguments) if hasattr(a, "dtype") and a.dtype == "int32")
        c[-1, 0] += 1

    monkeypatch.setattr(batch_gemm, "prefill_cblas_gemm_s8s8s32", wrong)
    assert not any(check.passed for check in selftest._orders())


def test_without_a_library_it_says_why():
    done = run(KT_BLIS_LIBRARY="/nowhere/libblis.so")
    assert done.returncode == 3
    assert "KT531" in done.stderr
    assert "pip install" in done.stderr


def test_without_vnni_it_says_why():
    done = run(KT_CPU_FLAGS_MASK="avx512_vnni")
    assert done.returncode == 3
    assert "KT533" in done.stderr


def test_it_is_a_command_of_kt_as_well():
    command = [sys.executable, "-m", "kt_core.cli", "blis-selftest"]
    environ = os.environ | {"KT_BLIS_LIBRARY": "/nowhere/libblis.so"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)
    assert done.returncode == 3
    assert "KT531" in done.stderr
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=300)
    assert helped.returncode == 0
    assert "--seconds" in helped.stdout
