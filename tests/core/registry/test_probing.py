"""Probes: only the spec's own plugin is asked, and whatever it does becomes a reason."""

from __future__ import annotations

import pytest

from kt_core import Accepted, Rejected
from kt_core.errors import Location, PluginError
from kt_core.registry import environment, probing
from kt_core.registry.environment import (
    CudaPresence,
    cpu_flags,
    cuda_presence,
    parse_cpuinfo_flags,
    probe_env,
)
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec

SPEC = kernel_spec("kt_toy.linear", devices=("cpu", "cuda"))


def registry_with(probe, environ=None, **fields):
    spec = kernel_spec("kt_toy.linear", **{"devices": ("cpu", "cuda"), **fields})
    environ = {} if environ is None else environ
    return fake_registry(fake_plugin(kernels=[spec], probe=probe), environ=environ)


def result_of(probe, device="cpu", **options):
    registry = registry_with(probe, **options)
    return registry.probe(registry.kernel("kt_toy.linear").spec, device)


@pytest.fixture(autouse=True)
def with_torch(monkeypatch):
    """What is probed here does not depend on whether this environment has torch."""
    monkeypatch.setattr(probing, "torch_version", lambda: "2.13.0")


def test_nothing_runs_without_torch(monkeypatch):
    monkeypatch.setattr(probing, "torch_version", lambda: None)
    result = result_of(lambda spec, env: Accepted())
    assert result == Rejected(("torch is not installed",), 'pip install "kt-core[torch]"')


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(probing, "cuda_presence", lambda environ: CudaPresence(2))


def test_a_plugin_without_a_word_accepts():
    assert result_of(None) == Accepted()
    assert result_of(lambda spec, env: None) == Accepted()


def test_the_probe_sees_its_spec_device_and_environment():
    seen = []

    def probe(spec, env):
        seen.append((spec.name, env.device, env.environ["KT_X"], env.cpu_flags))
        return Accepted("fine")

    assert result_of(probe, environ={"KT_X": "1"}) == Accepted("fine")
    assert seen == [("kt_toy.linear", "cpu", "1", cpu_flags())]


def test_only_the_own_plugin_is_asked_and_only_once():
    asked = []

    def probe_as(name):
        return lambda spec, env: asked.append((name, spec.name))

    registry = fake_registry(
        fake_plugin("a", kernels=[kernel_spec("kt_a.x")], probe=probe_as("a")),
        fake_plugin("b", kernels=[kernel_spec("kt_b.x")], probe=probe_as("b")),
        environ={},
    )
    spec = registry.kernel("kt_b.x").spec
    registry.probe(spec, "cpu")
    registry.probe(spec, "cpu")
    assert asked == [("b", "kt_b.x")]


def test_a_changed_environment_is_seen():
    environ = {}
    registry = registry_with(lambda spec, env: Accepted(env.environ.get("KT_X", "")), environ)
    spec = registry.kernel("kt_toy.linear").spec
    assert registry.probe(spec, "cpu") == Accepted("")
    environ["KT_X"] = "7"
    assert registry.probe(spec, "cpu") == Accepted("7")


def test_an_operator_and_a_kernel_are_asked_apart():
    spec = operator_spec("kt_toy.Same")
    kernel = kernel_spec("kt_toy.Same")
    registry = fake_registry(
        fake_plugin(
            operators=[spec], kernels=[kernel], probe=lambda s, env: Accepted(type(s).__name__)
        ),
        environ={},
    )
    assert registry.probe(spec, "cpu") == Accepted("OperatorSpec")
    assert registry.probe(kernel, "cpu") == Accepted("KernelSpec")


def fail(spec, env):
    raise OSError("libtoy.so.1: cannot open shared object file")


def leave(spec, env):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (fail, "its probe failed: OSError: libtoy.so.1"),
        (leave, "its probe failed: SystemExit: 3"),
        (lambda spec, env: True, "its probe returned bool, not Accepted or Rejected"),
        (lambda spec, env: Rejected(()), "its probe gives no reason"),
        (lambda spec, env: Rejected("no AVX2"), "no AVX2"),
        (lambda spec, env: Rejected(("no AVX2", "no FMA")), "no AVX2"),
    ],
)
def test_whatever_goes_wrong_is_a_rejection(probe, reason):
    result = result_of(probe)
    assert isinstance(result, Rejected)
    assert result.reasons[0].startswith(reason)


def test_rejection_is_a_problem_with_every_reason():
    registry = registry_with(lambda spec, env: Rejected(("no AVX2", "no FMA"), "buy a CPU"))
    place = Location("my.yaml", 3, 7)
    problem = registry.rejection(registry.kernel("kt_toy.linear"), "cpu", place)
    assert problem.render() == (
        'my.yaml:3:7: KT214 kt-toy 1.0 cannot run here: "kt_toy.linear" on cpu\n'
        "  rejected: no AVX2\n"
        "  rejected: no FMA\n"
        "  help: buy a CPU"
    )


def test_no_problem_where_it_can_run():
    registry = registry_with(lambda spec, env: Accepted("AVX2"))
    assert registry.rejection(registry.kernel("kt_toy.linear"), "cpu") is None


def test_the_device_is_checked_before_the_plugin_is_asked(two_gpus):
    def never(spec, env):
        raise AssertionError("asked")

    for device, words in {
        "cuda:2": "2 GPU(s) are visible",
        "tpu": 'kt has no device "tpu"',
        "npu": "not on",
    }.items():
        result = result_of(never, device)
        assert words in result.reasons[0]
    result = result_of(never, "cuda", devices=("cpu",))
    assert result.reasons == ('it runs on cpu, not on "cuda"',)


def test_an_index_counts_as_its_device_type(two_gpus):
    assert result_of(lambda spec, env: Accepted(env.device), "cuda:1") == Accepted("cuda")


def test_a_spec_that_is_not_registered_is_refused():
    with pytest.raises(PluginError) as caught:
        fake_registry().probe(kernel_spec("kt_toy.linear"), "cpu")
    assert caught.value.code == "KT215"


def test_masked_flags_are_hidden_from_probes():
    if not cpu_flags():
        pytest.skip("this system shows no CPU flags")
    first, *rest = sorted(cpu_flags())
    env = probe_env("cpu", {"KT_CPU_FLAGS_MASK": f" {first.upper()} ,nonsense"})
    assert env.cpu_flags == frozenset(rest)
    assert probe_env("cpu", {}).cpu_flags == cpu_flags()


def test_the_snapshot_does_not_change_with_the_environment():
    environ = {"KT_X": "1"}
    env = probe_env("cpu", environ)
    environ["KT_X"] = "2"
    assert env.environ["KT_X"] == "1"


def test_cpuinfo_flags_are_those_that_every_processor_has():
    x86 = "processor: 0\nflags\t\t: fpu AVX2 avx512f\n\nprocessor: 1\nflags\t\t: fpu avx2\n"
    arm = "processor: 0\nFeatures\t: fp asimd i8mm\nCPU part: 0xd40\n"
    assert parse_cpuinfo_flags(x86) == {"fpu", "avx2"}
    assert parse_cpuinfo_flags(arm) == {"fp", "asimd", "i8mm"}
    assert parse_cpuinfo_flags("vmx flags\t: vnmi\n") == frozenset()
    assert parse_cpuinfo_flags("") == frozenset()


@pytest.fixture
def machine_with(tmp_path, monkeypatch):
    """A root folder with these device files, and a torch of this version."""

    def build(*devices: str, torch: str | None = "2.13.0"):
        monkeypatch.setattr(environment, "installed_version", lambda name: torch)
        monkeypatch.setattr(environment.sys, "platform", "linux")
        (tmp_path / "dev").mkdir(exist_ok=True)
        for device in devices:
            (tmp_path / "dev" / device).touch()
        return tmp_path

    return build


@pytest.mark.parametrize(
    ("devices", "environ", "count"),
    [
        (("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"), {}, 2),
        (("nvidia0", "nvidia1"), {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (("nvidia0", "nvidia1"), {"CUDA_VISIBLE_DEVICES": "GPU-1, 0"}, 2),
        (("nvidia0", "nvidia1"), {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        (("kfd",), {}, None),
        (("kfd",), {"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_gpus_are_counted_by_their_device_files(machine_with, devices, environ, count):
    presence = cuda_presence(environ, machine_with(*devices))
    assert (presence.count, presence.reason) == (count, "")


@pytest.mark.parametrize(
    ("devices", "torch", "environ", "words"),
    [
        ((), "2.13.0", {}, "no GPU was found"),
        (("nvidiactl",), "2.13.0", {}, "no GPU was found"),
        (("nvidia0",), "2.13.0+cpu", {}, "torch 2.13.0+cpu is built without CUDA"),
        (("nvidia0",), "2.13.0", {"CUDA_VISIBLE_DEVICES": ""}, "hides every GPU"),
        (("nvidia0",), "2.13.0", {"CUDA_VISIBLE_DEVICES": "-1"}, "hides every GPU"),
        (("dxg",), "2.13.0", {}, "no GPU was found"),
    ],
)
def test_why_there_is_no_gpu(machine_with, devices, torch, environ, words):
    presence = cuda_presence(environ, machine_with(*devices, torch=torch))
    assert presence.count == 0
    assert words in presence.reason


@pytest.mark.parametrize(
    ("kind", "torch", "words"),
    [
        ("xpu", "2.13.0+cpu", "built without xpu"),
        ("xpu", "2.13.0+cu126", "built without xpu"),
        ("xpu", "2.13.0", "built without xpu"),
        ("xpu", "2.13.0+xpu", ""),
        ("xpu", "2.14.0a0+git1234567", ""),
        ("npu", None, "torch_npu is not installed"),
    ],
)
def test_other_devices_need_their_torch(machine_with, kind, torch, words):
    machine_with(torch=torch)
    reason = environment.extension_missing(kind)
    assert words in reason
    assert bool(reason) == bool(words)


@pytest.mark.parametrize(("system", "flags"), [("freebsd14", set()), ("emscripten", set())])
def test_a_system_that_tells_nothing_has_no_flags(monkeypatch, system, flags):
    monkeypatch.setattr(environment.sys, "platform", system)
    assert cpu_flags.__wrapped__() == flags
