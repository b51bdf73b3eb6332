"""Every candidate's verdict: missing, broken, without LPGEMM, wrong integers, wrong results, good."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kt_ops_amd_blis.verdicts import REQUIRED_FLAGS, search

from kt_core.registry.specs import Accepted, ProbeEnv, Rejected
from kt_ops_amd_blis import candidates, plugin, verdicts

FLAGS = frozenset(REQUIRED_FLAGS)
NO_LPGEMM = "int bli_info_get_int_type_size(void) { return 64; } void dgemm_(void) {}"


@pytest.fixture(autouse=True)
def no_installed_wheel(monkeypatch):
    """What these tests are about must not depend on whether aoclda is installed."""
    monkeypatch.setattr(candidates, "_in_wheel", lambda path: [])


def found(path: Path | str, **environ: str):
    return search({"KT_BLIS_LIBRARY": str(path), **environ}, FLAGS)


def test_nothing_anywhere(tmp_path):
    finding = search({}, FLAGS, tmp_path)
    assert finding.code == "KT531"
    for place in ("aoclda package", "/usr/local", "/usr", "the loader's path"):
        assert place in finding.reasons[0]
    assert 'pip install "kt-ops-amd-blis[aocl]"' in finding.help


def test_named_file_is_missing(tmp_path):
    finding = found(tmp_path / "libblis.so")
    assert finding.code == "KT531"
    assert "does not exist" in finding.reasons[0]


def test_without_lpgemm(compile_library):
    path = compile_library(NO_LPGEMM)
    finding = found(path)
    assert finding.code == "KT532"
    assert f"{path} has no aocl_gemm_s8s8s32os32" in finding.reasons[0]


def test_32_bit_integers(compile_library, reference_blis):
    path = compile_library(reference_blis.replace("return 64;", "return 32;"))
    finding = found(path)
    assert finding.code == "KT535"
    assert "32-bit integers" in finding.reasons[0]


def test_library_it_needs_is_missing(compile_library, reference_blis):
    soname = "-Wl,-soname,libhelper.so"
    helper = compile_library("int helper(void) { return 1; }", "libhelper.so", soname)
    source = reference_blis + "extern int helper(void); int use(void) { return helper(); }"
    path = compile_library(source, "libblis.so", f"-L{helper.parent}", "-lhelper")
    finding = found(path)
    assert finding.code == "KT534"
    assert "libhelper.so" in finding.reasons[0]
    # Beside the library it is found: that is how aoclda ships its OpenMP runtime.
    shutil.copy(helper, path.parent)
    os.utime(path)
    assert found(path).chosen is not None


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("__builtin_trap();", "KT534", "signal"),
        ("_exit(7);", "KT534", "exit 7"),
        ("raise(9);", "KT534", "signal 9"),
    ],
)
def test_dying_while_it_is_loaded(compile_library, reference_blis, fault, code, words):
    source = "#include <signal.h>\n#include <unistd.h>\n" + reference_blis
    source += f"__attribute__((constructor)) static void start(void) {{ {fault} }}"
    finding = found(compile_library(source))
    assert finding.code == code
    assert words in finding.reasons[0]


def test_computes_nothing_and_says_so(compile_library, reference_blis):
    head, _, _ = reference_blis.partition("{ for (int64_t i = 0; i < m; i++)")
    source = "#include <stdio.h>\n" + head + '{ printf("AVX512_VNNI ISA not supported\\n"); }'
    finding = found(compile_library(source))
    assert finding.code == "KT536"
    assert "AVX512_VNNI ISA not supported" in finding.reasons[0]


def test_computes_wrongly(compile_library, reference_blis):
    finding = found(compile_library(reference_blis.replace("sum += a", "sum -= a")))
    assert finding.code == "KT536"


def test_good(compile_library, reference_blis):
    path = compile_library(reference_blis)
    finding = found(path)
    assert finding.chosen is not None
    assert finding.chosen.path == path
    assert finding.chosen.facts.version == "stand-in 1.0"


def test_aocl_dlp_is_accepted(compile_library, reference_blis):
    source = reference_blis.replace("bli_info_get_int_type_size", "unused_size")
    source = source.replace("bli_info_get_version_str", "unused_version")
    source += "void dlp_version_query(int *a, int *b, int *c) { *a = 5; *b = 3; *c = 1; }"
    finding = found(compile_library(source, "libaocl-dlp.so"))
    assert finding.chosen is not None
    assert finding.chosen.facts.version == "AOCL-DLP 5.3.1"


def test_masked_flags_come_first_and_nothing_is_looked_for(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a library was looked for")

    monkeypatch.setattr(verdicts, "Search", forbidden)
    finding = search({}, FLAGS - {"avx512_vnni"})
    assert finding.code == "KT533"
    assert "avx512_vnni" in finding.reasons[0]


def test_order_of_places(compile_library, reference_blis, tmp_path):
    good = compile_library(reference_blis)
    other = compile_library(NO_LPGEMM)
    for variable in ("BLIS_ROOT", "CPUINFER_BLIS_ROOT"):
        prefix = tmp_path / variable / "lib"
        prefix.mkdir(parents=True)
        shutil.copy(good, prefix / "libblis.so.4")
    usr = tmp_path / "system/usr/lib/x86_64-linux-gnu/blis-openmp"
    usr.mkdir(parents=True)
    shutil.copy(other, usr / "libblis.so.4")
    root = tmp_path / "system"

    only_system = search({}, FLAGS, root)
    assert only_system.code == "KT532"
    assert "blis-openmp/libblis.so.4" in only_system.reasons[0]

    environ = {"CPUINFER_BLIS_ROOT": str(tmp_path / "CPUINFER_BLIS_ROOT")}
    assert "CPUINFER_BLIS_ROOT" in search(environ, FLAGS, root).chosen.origin
    environ["BLIS_ROOT"] = str(tmp_path / "BLIS_ROOT")
    assert search(environ, FLAGS, root).chosen.origin.startswith("BLIS_ROOT")
    environ["LD_LIBRARY_PATH"] = str(good.parent)
    assert search({"LD_LIBRARY_PATH": str(good.parent)}, FLAGS, root).chosen.path == good

    # KT_BLIS_ROOT is an order: what it names cannot be used, so nothing else is.
    environ["KT_BLIS_ROOT"] = str(tmp_path / "system/usr")
    assert search(environ, FLAGS, root).code == "KT532"
    environ["KT_BLIS_LIBRARY"] = str(good)
    assert search(environ, FLAGS, root).chosen.path == good


def test_the_furthest_verdict_names_the_problem(compile_library, reference_blis, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libblis.so.1").write_bytes(b"not a library")
    shutil.copy(compile_library(NO_LPGEMM), tmp_path / "lib/libblis.so.2")
    wrong = compile_library(reference_blis.replace("return 64;", "return 32;"))
    shutil.copy(wrong, tmp_path / "lib/libblis.so.3")
    finding = search({"KT_BLIS_ROOT": str(tmp_path)}, FLAGS)
    assert finding.code == "KT535"
    assert len(finding.verdicts) == len(finding.reasons) == 3


def test_debians_blis(tmp_path):
    """Debian's package is BLIS without LPGEMM; what most people have."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("this is no Debian system")
    fetched = subprocess.run(
        ["apt-get", "download", "libblis4-openmp"], cwd=tmp_path, capture_output=True, timeout=60
    )
    packages = list(tmp_path.glob("*.deb"))
    if fetched.returncode or not packages:
        pytest.skip("apt-get cannot download libblis4-openmp here")
    prefix = tmp_path / "root"
    subprocess.run(["dpkg", "-x", str(packages[0]), str(prefix)], check=True)
    finding = search({"KT_BLIS_ROOT": str(prefix / "usr")}, FLAGS)
    assert finding.code == "KT532"
    assert "libblis.so.4" in finding.reasons[0]


class TestProbe:
    """What a plan sees."""

    def probe(self, environ, flags=FLAGS):
        return plugin.kt_probe(plugin.KERNELS[0], ProbeEnv("cpu", flags, environ))

    def test_four_different_codes(self, compile_library, tmp_path, monkeypatch):
        masked = self.probe({}, FLAGS - {"avx512_vnni"})
        nothing = self.probe({"KT_BLIS_ROOT": str(tmp_path)})
        plain = self.probe({"KT_BLIS_LIBRARY": str(compile_library(NO_LPGEMM))})
        results = (masked, nothing, plain)
        assert all(isinstance(result, Rejected) for result in results)
        assert [result.reasons[0][:5] for result in results] == ["KT533", "KT531", "KT532"]
        assert len({result.help for result in results}) == 3

    def test_leftover_switch_is_explained(self, tmp_path):
        environ = {"KT_BLIS_ROOT": str(tmp_path), "CPUINFER_ENABLE_BLIS": "ON"}
        result = self.probe(environ)
        assert any(reason.startswith("KT549 CPUINFER_ENABLE_BLIS=ON") for reason in result.reasons)
        report = list(plugin.kt_report(ProbeEnv("cpu", FLAGS, environ)))
        assert any("KT549" in line and "MOE_INT8" in line for line in report)
        environ["CPUINFER_ENABLE_BLIS"] = "OFF"
        assert not any("KT549" in reason for reason in self.probe(environ).reasons)

    def test_accepted_says_which(self, compile_library, reference_blis):
        path = compile_library(reference_blis)
        result = self.probe({"KT_BLIS_LIBRARY": str(path)})
        assert result == Accepted(f"stand-in 1.0, {path}")

    def test_report_names_symbols_and_instruction_set(self, compile_library, reference_blis):
        environ = {"KT_BLIS_LIBRARY": str(compile_library(reference_blis))}
        report = "\n".join(plugin.kt_report(ProbeEnv("cpu", FLAGS, environ)))
        assert "aocl_gemm_s8s8s32os32" in report
        assert "avx512_vnni" in report
        assert "stand-in 1.0" in report

    def test_costs_nothing(self, compile_library, reference_blis):
        """Neither torch nor the library is in the process afterwards, and nothing was printed."""
        path = compile_library(reference_blis)
        code = (
            "import sys\n"
            "from kt_core.registry.specs import ProbeEnv\n"
            "from kt_ops_amd_blis import plugin\n"
            f"env = ProbeEnv('cpu', frozenset({sorted(FLAGS)!r}), {{'KT_BLIS_LIBRARY': {str(path)!r}}})\n"
            "result = plugin.kt_probe(plugin.KERNELS[0], env)\n"
            "list(plugin.kt_report(env))\n"
            "assert type(result).__name__ == 'Accepted', result\n"
            "assert not {'torch', 'numpy', 'cffi'} & set(sys.modules)\n"
            f"assert {str(path)!r} not in open('/proc/self/maps').read()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert done.stderr == ""
