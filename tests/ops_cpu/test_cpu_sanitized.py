"""The native library under AddressSanitizer and UndefinedBehaviorSanitizer, and what it is made of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kt_core.registry.environment import probe_env

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "kt_ops_cpu"
CC = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-g",
    "-O1",
    "-std=gnu11",
)

TOOLS = (CC, shutil.which("meson"), shutil.which("ninja"))


def can_sanitize(folder: Path) -> bool:
    source = folder / "probe.c"
    source.write_text("int main(void) { return 0; }")
    command = [CC, *FLAGS, str(source), "-o", str(folder / "probe")]
    built = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return built and subprocess.run([str(folder / "probe")], check=False).returncode == 0


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The library's static parts, built with sanitizers into a temporary folder."""
    if not all(TOOLS):
        pytest.skip("needs a C compiler, meson and ninja")
    folder = tmp_path_factory.mktemp("sanitized")
    if not can_sanitize(folder):
        pytest.skip(f"{CC} has no AddressSanitizer here")
    options = ("-Dsanitize=true", "-Dbuildtype=plain")
    for command in (
        ["meson", "setup", folder / "build", SOURCES, *options],
        ["ninja", "-C", folder / "build", "check"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "csrc"


@pytest.mark.slow
def test_every_variant_under_sanitizers(build, tmp_path):
    """See sanitized.c: odd sizes, unaligned weights, buffers that end where they must."""
    driver = tmp_path / "driver"
    objects = sorted(str(path) for path in build.glob("lib*.p/*.o"))
    command = [CC, *FLAGS, f"-I{SOURCES}/csrc", str(HERE / "sanitized.c"), *objects]
    done = subprocess.run(
        [*command, "-pthread", "-lm", "-o", str(driver)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Leaks cannot be looked for where a debugger or container is in the way; the rest can.
    environ = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    done = subprocess.run(
        [str(driver)], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = re.search(r"(\d+) variants, (\d+) checks, 0 failures", done.stdout)
    assert found, done.stdout
    assert int(found[2]) > 1000 * int(found[1])
    if "avx2" in probe_env("cpu").cpu_flags:
        assert int(found[1]) >= 2


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names x86-64 registers")
def test_only_the_variants_of_avx512_hold_its_instructions(build):
    """The second proof beside test_cpu_emulated.py: no object that any CPU may run needs AVX-512."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("needs objdump")

    def registers(folder: str) -> set[str]:
        found: set[str] = set()
        for path in sorted((build / folder).glob("*.o")):
            text = subprocess.run(
                [objdump, "-d", "--no-show-raw-insn", str(path)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            found |= set(re.findall(r"%([xyz])mm", text))
            if re.search(r"%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]\b", text):
                found.add("z")  # AVX-512VL on narrow registers
        return found

    assert "z" not in registers("libcore.a.p")
    assert registers("libvariant-c.a.p") <= {"x"}
    assert "z" not in registers("libvariant-avx2.a.p")
    if registers("libvariant-avx2.a.p") >= {"y"}:  # the compiler can target it
        assert "z" in registers("libvariant-avx512.a.p"), "the search finds what is there"
