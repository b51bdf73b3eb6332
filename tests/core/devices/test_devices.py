"""The devices of a machine: words, vendors by facts, what torch reports, and plugins' own kinds."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from kt_core import hookimpl
from kt_core.cli.main import main
from kt_core.devices import kinds, torch_backends
from kt_core.devices.backend import Backend, Device
from kt_core.devices.manager import DeviceManager, device_manager
from kt_core.devices.vendors import GPUVendor, vendor_on_bus
from kt_core.errors import PluginError, RuleError, UsageError
from kt_core.registry.registry import Registry, core_candidate
from kt_core.registry.specs import DeviceSpec
from kt_core.rules import check_text, select_rules


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:3", "cuda:3"),
        ("npu:1", "npu:1"),
        ("xpu", "xpu:0"),
        ("mps", "mps"),
    ],
)
def test_names(name, expected):
    assert kinds.canonical(name) == expected
    assert kinds.kind_of(expected) == name.partition(":")[0]


@pytest.mark.parametrize(
    "name", ["", "tpu", "cpu:1", "mps:1", "cuda:", "cuda:x", "cuda:1:2", "CUDA"]
)
def test_names_that_are_none(name):
    with pytest.raises(UsageError, match="KT710"):
        kinds.canonical(name)


# --- vendors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("0x10de\n", GPUVendor.NVIDIA),
        ("0x1002\n", GPUVendor.AMD),
        ("0x8086\n", GPUVendor.INTEL),
        ("0x1ed5\n", GPUVendor.MOORE_THREADS),
        ("0x1234\n", GPUVendor.UNKNOWN),
        ("garbage", None),
        (None, None),
    ],
)
def test_a_vendor_by_its_number_on_the_bus(text, vendor, tmp_path):
    if text is not None:
        folder = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(text)
    assert vendor_on_bus(0, 0x3B, 0, tmp_path) is vendor


class FakeCuda:
    """torch.cuda with devices whose names would mislead a search for words."""

    def __init__(self, names, **more):
        self.names = names
        self.more = more

    def is_available(self):
        return bool(self.names)

    def device_count(self):
        return len(self.names)

    def get_device_properties(self, index):
        return SimpleNamespace(
            name=self.names[index], total_memory=1 << 34, major=9, minor=0, **self.more
        )

    def mem_get_info(self, index):
        return (1 << 33, 1 << 34)


def cuda_of(monkeypatch, module, hip=None, cuda=None, root=None):
    monkeypatch.setattr(torch, "cuda", module)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    backend = torch_backends.Cuda()
    if root is not None:
        backend.root = root
    return backend


def test_rocm_is_told_by_what_torch_was_built_for(monkeypatch, tmp_path):
    fake = FakeCuda(["GeForce lookalike"], gcnArchName="gfx942")
    device = cuda_of(monkeypatch, fake, hip="6.2", root=tmp_path).describe(0)
    assert device.vendor is GPUVendor.AMD
    assert device.detail == "ROCm 6.2, gfx942"


@pytest.mark.parametrize("name", ["Some MI-like RX Meta card", "NVIDIA H200"])
def test_names_do_not_decide(name, monkeypatch, tmp_path):
    device = cuda_of(monkeypatch, FakeCuda([name]), cuda="13.0", root=tmp_path).describe(0)
    assert device.vendor is GPUVendor.NVIDIA
    assert (device.memory, device.memory_free) == (1 << 34, 1 << 33)
    assert device.detail == "capability 9.0"


def test_the_bus_knows_better_than_the_build(monkeypatch, tmp_path):
    """A fork of torch for another maker's GPUs may call itself a build for CUDA."""
    folder = tmp_path / "sys/bus/pci/devices/0000:01:02.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x9999")
    fake = FakeCuda(["C500"], pci_domain_id=0, pci_bus_id=1, pci_device_id=2)
    device = cuda_of(monkeypatch, fake, cuda="12.1", root=tmp_path).describe(0)
    assert device.vendor is GPUVendor.METAX


def test_what_is_not_here_says_why(monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda([]))
    manager = DeviceManager.of(Registry.of(core_candidate()))
    assert manager.kinds == kinds.BUILT_IN
    assert "sees no cuda device" in manager.missing("cuda:0")
    assert "torch_npu" in manager.absent()["npu"]
    assert manager.missing("cpu") is None
    assert next(device.name for device in manager.devices()) == "cpu"
    assert manager.vendor("cuda:0") is GPUVendor.UNKNOWN
    with pytest.raises(LookupError, match="sees no cuda"):
        manager.device("cuda:0")


def test_a_number_beyond_the_last(monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda(["a", "b"]))
    manager = DeviceManager({"cuda": torch_backends.Cuda()})
    assert manager.missing("cuda:1") is None
    assert "2 cuda devices, numbered from 0" in manager.missing("cuda:2")
    assert [device.name for device in manager.devices()] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(("built", "says"), [(True, "no GPU of Apple's"), (False, "not built")])
def test_mps(built, says, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    backend = torch_backends.Mps()
    assert backend.count() == 0
    assert says in backend.missing()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert backend.missing() is None
    assert backend.count() == 1


def test_xpu_and_npu_are_what_torch_reports(monkeypatch):
    fake = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="Arc", total_memory=1 << 30),
    )
    for backend, vendor in (
        (torch_backends.Xpu(), GPUVendor.INTEL),
        (torch_backends.Npu(), GPUVendor.HUAWEI),
    ):
        monkeypatch.setattr(torch, backend.kind, fake, raising=False)
        assert backend.missing() is None
        found = backend.describe(0)
        assert (found.name, found.vendor, found.memory) == (
            f"{backend.kind}:0",
            vendor,
            1 << 30,
        )


def test_torch_words_for_devices_of_other_machines():
    assert torch_backends.torch_device("cuda:1") == torch.device("cuda:1")
    there = torch_backends.torch_device("npu:2")
    assert there.index == 2


# --- plugins --------------------------------------------------------------------------------------


class Toy(Backend):
    """A kind that a plugin brings."""

    kind = "toy"

    def missing(self):
        return None

    def count(self):
        return 2

    def describe(self, index):
        return Device(f"toy:{index}", "a toy", GPUVendor.UNKNOWN, 1024)


def plugin_with(*specs):
    @hookimpl
    def kt_register_devices():
        return specs

    return SimpleNamespace(KT_PLUGIN_API=1, kt_register_devices=kt_register_devices)


def test_a_plugin_brings_a_kind_that_rules_may_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "kt_toy_devices", SimpleNamespace(Toy=Toy))
    spec = DeviceSpec("toy", "kt_toy_devices:Toy", "Toys.")
    registry = Registry.of(core_candidate(), plugin_with(spec))
    manager = DeviceManager.of(registry)
    assert manager.missing("toy:1") is None
    assert manager.device("toy:1").title == "a toy"
    assert "numbered from 0" in manager.missing("toy:2")
    text = "- {match: {name: x$}, replace: {class: default, kwargs: {generate_device: 'toy:1'}}}\n"
    assert check_text(text, "rules.yaml", registry).problems == ()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (DeviceSpec("Toy", "a.b:C", "Toys."), "not a lower-case word"),
        (DeviceSpec("toy", "a.b.C", "Toys."), "not of the form"),
        (DeviceSpec("toy", "a.b:C", ""), "one line of text"),
        ("toy", "must return DeviceSpec objects"),
    ],
)
def test_a_plugin_with_a_wrong_kind_is_refused(spec, says):
    registry = Registry.of(core_candidate(), plugin_with(spec))
    assert any(says in problem.message for problem in registry.problems())
    assert [found.name for found in registry.devices()] == list(kinds.BUILT_IN)


@pytest.mark.parametrize("target", ["json:dumps", "collections:Counter", "no_such_module:X"])
def test_a_kind_whose_class_is_none_is_named_when_it_is_asked(target):
    registry = Registry.of(core_candidate(), plugin_with(DeviceSpec("odd", target, "Odd.")))
    with pytest.raises(PluginError, match="KT216"):
        DeviceManager.of(registry)


# --- where it shows -------------------------------------------------------------------------------


def test_doctor_shows_what_is_here_and_why_the_rest_is_not(capsys):
    main(["doctor", "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert report["devices"][0]["name"] == "cpu"
    here = {device["name"].partition(":")[0] for device in report["devices"]}
    assert here | report["no_devices"].keys() >= set(kinds.BUILT_IN)
    main(["doctor"])
    out = capsys.readouterr().out
    assert "\ndevices\n" in out
    assert device_manager().kinds[0] == "cpu"


def test_a_device_that_no_distribution_computes_on_says_which_plugin_is_missing():
    registry = Registry.of(core_candidate())
    with pytest.raises(RuleError) as caught:
        select_rules("MixtralForCausalLM", device="xpu:0", registry=registry)
    (problem,) = caught.value.problems
    assert problem.code == "KT162"
    assert "a plugin that brings kernels and rule files for xpu is missing" in problem.message
    assert "kt rules new --device xpu:0" in problem.help
