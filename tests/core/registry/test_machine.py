"""Facts about the machine, read from a made-up file system."""

from __future__ import annotations

import os
import stat
import time

import pytest

from kt_core.registry import machine, packages

GIB = 1 << 30


@pytest.fixture
def root(tmp_path):
    """Write files below a root folder: ``root({"proc/meminfo": "…"})``."""

    def write(files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def topology(*cores: tuple[int, int]) -> dict[str, str]:
    """``(package, core)`` of each logical processor."""
    base = "sys/devices/system/cpu"
    return {
        f"{base}/cpu{number}/topology/{name}": f"{value}\n"
        for number, (package, core) in enumerate(cores)
        for name, value in (("physical_package_id", package), ("core_id", core))
    }


def test_siblings_count_once_and_packages_apart(root):
    tree = root(topology((0, 0), (0, 1), (0, 0), (0, 1), (1, 0)))
    assert machine.physical_cores(None, tree) == 3
    assert machine.physical_cores(frozenset({0, 2}), tree) == 1
    assert machine.physical_cores(frozenset({0, 1}), tree) == 2


def test_unknown_topology_is_none(root):
    assert machine.physical_cores(None, root({})) is None


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/cpu.max": "800000 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "5:cpuacct,cpu:/job\n4:memory:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "5 0"}, None),
    ],
)
def test_cpu_quota_is_the_least_of_all_levels(root, files, quota):
    assert machine.cpu_quota(root(files)) == quota


@pytest.mark.parametrize(
    ("cpus", "cores", "quota", "threads"),
    [
        (range(4), [(0, 0), (0, 1), (0, 0), (0, 1)], "max 100000", 2),
        (range(4), [(0, 0), (0, 1), (0, 2), (0, 3)], "250000 100000", 2),
        (range(2), [(0, 0), (0, 1), (0, 2), (0, 3)], "max 100000", 2),
        (range(4), [(0, 0), (0, 1), (0, 2), (0, 3)], "50000 100000", 1),
        (range(3), [], "max 100000", 3),
    ],
)
def test_effective_threads_are_the_least_limit(root, monkeypatch, cpus, cores, quota, threads):
    tree = root({**topology(*cores), "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    monkeypatch.setattr(machine, "affinity", lambda: frozenset(cpus))
    assert machine.effective_threads(tree) == threads


def test_effective_threads_of_this_machine_are_possible():
    assert 1 <= machine.effective_threads() <= (os.cpu_count() or 1)


def test_memory_and_its_limit(root):
    tree = root(
        {
            "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n",
            "proc/self/cgroup": "0::/job\n4:memory:/job\n",
            "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )
    assert machine.memory(tree) == machine.Memory(16 * GIB, 8 * GIB, 4 * GIB)


def test_a_machine_that_tells_nothing(root):
    tree = root({})
    if machine.sys.platform == "linux":
        assert machine.memory(tree) == machine.Memory(None, None, None)
    assert machine.cpu_model(tree)


def test_the_cpu_is_named(root):
    tree = root({"proc/cpuinfo": "processor : 0\nmodel name\t: Some CPU @ 3 GHz\n"})
    assert machine.cpu_model(tree) == "Some CPU @ 3 GHz"


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a shell script in the place of ``nvidia-smi``."""

    def install(script: str):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_gpus_are_listed(nvidia_smi):
    nvidia_smi("echo '0, NVIDIA H200, 143771, 143000, 575.57, 9.0'; echo 'note: not a row'")
    found, reason = machine.gpus()
    assert reason == ""
    assert found == [
        machine.Gpu(0, "NVIDIA H200", 143771 << 20, 143000 << 20, "575.57", "9.0"),
    ]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'No devices were found'; exit 6", "No devices were found"),
        ("echo broken driver >&2; exit 9", "broken driver"),
        ("exit 0", "lists no GPU"),
        ("echo '0, Card, [N/A], [N/A], 1'", "lists no GPU"),
    ],
)
def test_why_no_gpu_is_listed(nvidia_smi, script, words):
    nvidia_smi(script)
    found, reason = machine.gpus()
    assert found == []
    assert words in reason


def test_a_hung_driver_does_not_hang_us(nvidia_smi):
    nvidia_smi("exec sleep 30")
    start = time.monotonic()
    assert machine.gpus(timeout=0.3) == ([], "nvidia-smi gave no answer within 0.3 s")
    assert time.monotonic() - start < 5


def test_no_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus() == ([], "nvidia-smi is not installed")


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("5.17", ">=5.17,<6", True),
        ("5.17.0", ">=5.17,<6", True),
        ("5.16.9", ">=5.17,<6", False),
        ("6.0.0", ">=5.17,<6", False),
        ("10.0", ">=5.17", True),
        ("2.13.0+cpu", ">=2.6,<3", True),
        ("2026.2.28", ">=2024.4.16", True),
        ("1.0", "", True),
    ],
)
def test_versions_within_bounds(version, specifier, expected):
    assert packages.within(version, specifier) is expected


def test_a_package_outside_its_range_is_kt221(monkeypatch):
    installed = {"transformers": "4.57.1", "torch": "2.13.0+cpu"}
    monkeypatch.setattr(packages, "installed_version", installed.get)
    (problem,) = packages.out_of_range()
    assert problem.code == "KT221"
    assert problem.message.startswith("transformers 4.57.1 is installed; kt-core ")
    assert problem.help.startswith('pip install "transformers>=5')


def test_this_environment_is_within_the_ranges():
    assert packages.out_of_range() == []
