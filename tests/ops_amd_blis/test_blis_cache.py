"""Reordered weights on disk: used when they fit, refused when they do not, never half there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from kt_ops_amd_blis.experts import MoeInt8

from kt_core.errors import KernelError
from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.weights import PackedTensor, QuantType
from kt_ops_amd_blis import cache as cache_module
from kt_ops_amd_blis import experts as experts_module

pytestmark = pytest.mark.usefixtures("blis")

SHAPE = ExpertsShape(4, 320, 200, 2)


def stored(seed=0):
    random = np.random.default_rng(seed)
    sizes = ((200, 320), (200, 320), (320, 200))
    return ExpertsWeights(
        *(
            [
                PackedTensor(f"{e}", size, QuantType.F32, m.view(np.uint8))
                for e, m in enumerate(random.standard_normal((4, *size), np.float32))
            ]
            for size in sizes
        )
    )


def kernel(folder, **options):
    options = {"cache_dir": str(folder), **options}
    context = KernelContext("layers.0.experts", torch.float32, torch.device("cpu"), options)
    return MoeInt8(SHAPE, Activation(), context)


def result(layer):
    x = torch.randn(9, 320, generator=torch.Generator().manual_seed(1))
    index = torch.arange(18).reshape(9, 2) % 4
    return layer.forward(x, index, torch.ones(9, 2))


def file_of(folder):
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def made(tmp_path):
    """A cache with one file, and what its layer computes."""
    layer = kernel(tmp_path / "cache")
    layer.load(stored())
    return tmp_path / "cache", result(layer)


@pytest.fixture
def no_packing(made, monkeypatch):
    """From here on loading must come from the file."""

    def fail(*args, **kwargs):
        raise AssertionError("weights were quantised again")

    monkeypatch.setattr(experts_module, "fill", fail)


@pytest.mark.usefixtures("no_packing")
def test_second_load_reads(made):
    folder, expected = made
    layer = kernel(folder)
    layer.load(stored())
    assert torch.equal(result(layer), expected)


@pytest.mark.usefixtures("no_packing")
def test_another_number_of_threads_reads_the_same_file(made, monkeypatch):
    folder, expected = made
    monkeypatch.setenv("KT_CPU_THREADS", "7")
    layer = kernel(folder)
    layer.load(stored())
    assert torch.equal(result(layer), expected)


def test_other_weights_get_a_file_of_their_own(made):
    folder, expected = made
    other = kernel(folder)
    other.load(stored(seed=1))
    assert not torch.equal(result(other), expected)
    assert len(list(folder.iterdir())) == 2


def test_groups_get_a_file_of_their_own(made):
    folder, _ = made
    kernel(folder, group_size=64).load(stored())
    assert sorted(".group64." in path.name for path in folder.iterdir()) == [False, True]


def rewrite_header(path, change):
    data = path.read_bytes()
    length = int.from_bytes(data[12:16], "little")
    header = json.loads(data[16 : 16 + length])
    change(header)
    text = json.dumps(header).encode()
    start = data[:12] + len(text).to_bytes(4, "little") + text
    path.write_bytes(start + bytes(-len(start) % 4096) + data[4096:])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("experts", 5),
        ("hidden", 384),
        ("intermediate", 256),
        ("scheme", "symmetric int4"),
        ("group_size", 32),
        ("library", "AOCL-BLAS 5.2.0"),
        ("cpu", "AMD EPYC 9654"),
        ("layout", "0" * 32),
        ("source", "0" * 32),
    ],
)
def test_stale_file_is_refused_and_kept(made, field, value):
    folder, _ = made
    path = file_of(folder)
    rewrite_header(path, lambda header: header.update({field: value}))
    before = path.read_bytes()
    with pytest.raises(KernelError) as caught:
        kernel(folder).load(stored())
    assert caught.value.code == "KT542"
    assert f"{field}: {value!r} in the file" in str(caught.value)
    assert path.read_bytes() == before


def cut(size):
    return lambda data: data[:size]


DAMAGE = {
    "empty": cut(0),
    "no-length": cut(13),
    "in-header": cut(60),
    "no-panels": cut(4096),
    "in-panels": cut(100_000),
    "one-byte-short": lambda data: data[:-1],
    "one-byte-long": lambda data: data + b"\0",
    "other-file": lambda data: b"GGUF" + data[4:],
    "other-version": lambda data: data[:8] + b"\2\0\0\0" + data[12:],
    "huge-header": lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:],
    "header-not-json": lambda data: data[:16] + b"\xff" * 40 + data[56:],
    "header-a-list": lambda data: data[:12] + b"\2\0\0\0[]" + data[18:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file(made, damage):
    folder, _ = made
    path = file_of(folder)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(KernelError) as caught:
        kernel(folder).load(stored())
    assert caught.value.code == "KT543"
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("width", [0, -128, 10**9, "128", None, True])
def test_damaged_widths(made, width):
    folder, _ = made
    rewrite_header(file_of(folder), lambda header: header.update(gate_up_width=width))
    with pytest.raises(KernelError) as caught:
        kernel(folder).load(stored())
    assert caught.value.code in ("KT542", "KT543")


def test_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    folder = tmp_path / "cache"
    with pytest.raises(KernelError) as caught:
        kernel(folder).load(stored())
    assert caught.value.code == "KT543"
    assert "No space left" in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(KernelError) as caught:
        kernel(tmp_path / "cache").load(stored())
    assert caught.value.code == "KT543"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Qwen3-MoE of two layers as a GGUF file."""
    from kt_core.testing.packed import random_packed

    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("model") / "moe.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    for name, value in {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 64,
        "head_count": 2,
        "head_count_kv": 2,
        "key_length": 32,
        "value_length": 32,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "vocab_size": 8,
    }.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-6)
    sizes = {
        "attn_norm": (64,),
        "ffn_norm": (64,),
        "attn_q_norm": (32,),
        "attn_k_norm": (32,),
        "attn_q": (64, 64),
        "attn_k": (64, 64),
        "attn_v": (64, 64),
        "attn_output": (64, 64),
        "ffn_gate_inp": (4, 64),
        "ffn_gate_exps": (4, 32, 64),
        "ffn_up_exps": (4, 32, 64),
        "ffn_down_exps": (4, 64, 32),
    }
    tensors = {f"blk.{i}.{name}": size for i in range(2) for name, size in sizes.items()}
    tensors |= {"token_embd": (8, 64), "output_norm": (64,), "output": (8, 64)}
    for seed, (name, size) in enumerate(tensors.items()):
        values = random_packed(QuantType.F32, size, seed=seed).dequantize()
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantize(*arguments):
    """Run ``kt quantize``."""
    command = [sys.executable, "-m", "kt_core.cli", "quantize", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_command_writes_a_file_per_layer_and_continues(model, tmp_path):
    folder = tmp_path / "out"
    done = quantize("--gguf", model, "--method", "MOE_INT8", "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "2 layers in" in done.stdout
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(files) == 2
    next(iter(files)).unlink()  # as if it had been interrupted
    again = quantize("--gguf", model, "--method", "MOE_INT8", "--output", folder)
    assert again.returncode == 0, again.stderr
    assert len(list(folder.iterdir())) == 2
    kept = [p for p, time in files.items() if p.stat().st_mtime_ns == time]
    assert len(kept) == 1


def test_command_says_what_it_cannot_do(model, tmp_path):
    plain = quantize("--gguf", model, "--method", "KExpertsTorch", "--output", tmp_path)
    assert plain.returncode == 2
    assert "KT735" in plain.stderr
    odd = quantize(
        "--gguf", model, "--method", "MOE_INT8", "--output", tmp_path, "--group-size", 65
    )
    assert odd.returncode == 2
    assert "65" in odd.stderr
    unknown = quantize("--gguf", model, "--method", "MOE_INT9", "--output", tmp_path)
    assert 'did you mean "MOE_INT8"?' in unknown.stderr
