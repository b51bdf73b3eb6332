"""The library on CPUs that lack AVX-512, and AVX2 too: emulated, and bit for bit as expected.

Under ``qemu-x86_64`` an instruction that the emulated CPU does not have ends the process, so that one
AVX-512 instruction in the wrong place, in our library or before it, fails here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from kt_core.operators.kernel import (
    Activation,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
    LinearShape,
)
from kt_core.weights import PackedTensor, QuantType

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.experts import CpuExperts
from kt_ops_cpu.formats import FORMATS
from kt_ops_cpu.library import native, set_variant, variant, variant_names
from kt_ops_cpu.linear import CpuLinear

QEMU = shutil.which("qemu-x86_64")

CPUS = {"SandyBridge": "c", "Haswell": "avx2"}
"""Emulated CPU to the variant that must run on it: no AVX2, and no AVX-512."""

ROWS, COLS, TOKENS, EXPERTS = 35, 512, 5, 3

CHILD = """
import sys
import numpy as np
from test_cpu_emulated import results
from kt_ops_cpu.library import native, variant, variant_names
found = results(dict(np.load(sys.argv[1])))
np.savez(sys.argv[2], variant=variant(), usable=variant_names(native()), **found)
"""


def packed(given, key, shape, stored):
    return PackedTensor(key, shape, QuantType(stored), given[key])


def context(bits):
    return KernelContext("layer", torch.float32, torch.device("cpu"), {"activation_bits": bits})


def results(given):
    """Every format in a linear layer, few tokens and more, and a layer of experts of mixed types."""
    found = {}
    x = torch.from_numpy(given["x"])
    for stored in FORMATS:
        for bits in (8, 16):
            kernel = CpuLinear(LinearShape(COLS, ROWS), context(bits))
            kernel.load(packed(given, f"linear {stored}", (ROWS, COLS), stored), None)
            for tokens in (1, TOKENS):
                y = kernel.forward(x[:tokens])
                found[f"linear {stored} {bits} {tokens}"] = y.numpy()
    kernel = CpuExperts(ExpertsShape(EXPERTS, COLS, COLS, 2), Activation(), context(8))
    kernel.load(
        ExpertsWeights(
            *(
                [packed(given, f"{part} {e}", (COLS, COLS), stored) for e in range(EXPERTS)]
                for part, stored in (("gate", "Q4_K"), ("up", "IQ4_XS"), ("down", "Q6_K"))
            )
        )
    )
    ids = torch.tensor([[0, 2], [1, -1], [2, 1], [0, 1], [2, 0]])
    found["experts"] = kernel.forward(x, ids, torch.full((TOKENS, 2), 0.5)).numpy()
    return found


def inputs(random_packed):
    values = np.random.default_rng(0).integers(-999, 999, (TOKENS, COLS)) / 256
    given = {"x": values.astype(np.float32)}
    given |= {f"linear {stored}": random_packed(stored, ROWS, COLS).data for stored in FORMATS}
    for part, stored in (("gate", "Q4_K"), ("up", "IQ4_XS"), ("down", "Q6_K")):
        given |= {f"{part} {e}": random_packed(stored, COLS, COLS, e).data for e in range(EXPERTS)}
    return given


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None, reason="qemu-user is not installed")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="compares with this machine's variants")
@pytest.mark.parametrize("cpu", CPUS)
def test_runs_on_a_lesser_cpu(cpu, tmp_path, random_packed, restore_variant):
    wanted = CPUS[cpu]
    if wanted not in variant_names(native()):
        pytest.skip(f"this CPU has no {wanted} to compare with")
    given = inputs(random_packed)
    np.savez(tmp_path / "given.npz", **given)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KT_CPU_")}
    environ["PYTHONPATH"] = os.pathsep.join(
        [os.path.dirname(__file__), environ.get("PYTHONPATH", "")]
    )
    environ.pop("PYTHONSAFEPATH", None)
    files = [str(tmp_path / name) for name in ("given.npz", "found.npz")]
    done = subprocess.run(
        [QEMU, "-cpu", cpu, sys.executable, "-c", CHILD, *files],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(np.load(files[1]))
    assert str(found.pop("variant")) == wanted
    assert list(found.pop("usable")) == ["c", "avx2"][: 1 + (wanted == "avx2")]
    set_variant(wanted)
    assert variant() == wanted
    expected = results(given)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert np.isfinite(value).all(), key
        assert np.array_equal(found[key], value), key
