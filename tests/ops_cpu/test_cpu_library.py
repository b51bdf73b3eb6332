"""Loading the native library, choosing its variant, and what the plugin says about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from kt_core.errors import KernelError
from kt_core.registry.environment import probe_env
from kt_core.registry.registry import default_registry
from kt_core.registry.specs import Accepted, Rejected

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.formats import FORMATS
from kt_ops_cpu.library import native, set_variant, variant, variant_names

from kt_ops_cpu import library


def in_child(code, **environ):
    """Run ``code`` in a fresh interpreter; return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONSAFEPATH": "1", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PROBE = """
    import json
    from kt_core.registry.environment import probe_env
    from kt_core.registry.registry import default_registry
    found = default_registry().kernel("kt_ops_cpu.linear")
    result = default_registry().probe(found.spec, "cpu")
    print(json.dumps([type(result).__name__, getattr(result, "detail", ""),
                      list(getattr(result, "reasons", ())), getattr(result, "help", "")]))
"""


def test_variants_are_in_order_and_the_best_is_used():
    names = variant_names(native())
    assert names[0] == "c"
    assert names == [name for name in ("c", "avx2", "avx512", "amx") if name in names]
    assert (
        in_child(
            "import json; from kt_ops_cpu.library import variant; print(json.dumps(variant()))"
        )
        == names[-1]
    )


def test_detection_agrees_with_the_system():
    """What /proc/cpuinfo lists must be found, and nothing else."""
    flags = probe_env("cpu", {}).cpu_flags
    if not flags or os.uname().machine != "x86_64":
        pytest.skip("the system does not list CPU flags")
    names = variant_names(native())
    assert ("avx2" in names) == ({"avx2", "fma", "f16c"} <= flags)
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
    assert ("avx512" in names) == (avx512 <= flags)
    if "amx" in names:
        assert {"amx_tile", "amx_int8"} <= flags


@pytest.mark.parametrize("name", variant_names(native()))
def test_forced_variant_is_used(name):
    kind, detail, _, _ = in_child(PROBE, KT_CPU_ISA=name)
    assert kind == "Accepted"
    assert detail.startswith(f"{name} (forced), ")


@pytest.mark.parametrize("name", ["", "AVX512", "sse9", "avx512;rm"])
def test_unknown_variant_is_refused(name):
    kind, _, reasons, help_line = in_child(PROBE, KT_CPU_ISA=name)
    assert kind == "Rejected"
    assert reasons[0].startswith(f"KT_CPU_ISA={name}: there is no variant")
    assert help_line.startswith("KT_CPU_ISA=")


def test_variant_above_the_host_is_refused(restore_variant):
    module = native()
    every = ["c", "avx2", "avx512", "amx"]
    above = [name for name in every if name not in variant_names(module)]
    for name in above:
        with pytest.raises(KernelError, match=f"KT_CPU_ISA={name}") as caught:
            set_variant(name)
        assert caught.value.code == "KT506"
        assert module.lib.kt_cpu_isa_set(every.index(name)) == module.lib.KT_CPU_VARIANT
    assert variant() in variant_names(module)


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kt_ops_cpu._native", None)
    monkeypatch.delattr("kt_ops_cpu._native")
    library.native.cache_clear()
    try:
        with pytest.raises(KernelError) as caught:
            library.native()
        assert caught.value.code == "KT500"
        assert "pip install" in caught.value.problems[0].help
        found = default_registry().kernel("kt_ops_cpu.experts")
        result = default_registry().probe(found.spec, "cpu")
        assert isinstance(result, Rejected)
        assert "cannot be loaded" in result.reasons[0]
    finally:
        library.native.cache_clear()


def test_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(library, "ABI_VERSION", library.ABI_VERSION + 1)
    library.native.cache_clear()
    try:
        with pytest.raises(KernelError, match="another version") as caught:
            library.native()
        assert caught.value.code == "KT500"
    finally:
        library.native.cache_clear()


def test_kernels_are_registered_under_their_aliases():
    registry = default_registry()
    for alias in ("KLinearCPUInfer", "ktransformers.operators.linear.KLinearCPUInfer"):
        assert registry.kernel(alias).spec.name == "kt_ops_cpu.linear"
    for alias in ("KExpertsCPU", "LLAMAFILE", "ktransformers.operators.experts.KExpertsCPU"):
        assert registry.kernel(alias).spec.name == "kt_ops_cpu.experts"
    for name in ("kt_ops_cpu.linear", "kt_ops_cpu.experts"):
        spec = registry.kernel(name).spec
        assert set(spec.weight_formats) == set(FORMATS)
        assert isinstance(registry.probe(spec, "cpu"), Accepted)
        assert registry.load_target(spec).kind == spec.kind


def test_registering_imports_neither_torch_nor_the_library():
    loaded = in_child(
        """
        import json, sys
        from kt_core.registry.registry import Registry
        registry = Registry.discover()
        assert registry.kernel("KExpertsCPU") is not None
        print(json.dumps([name for name in ("torch", "kt_ops_cpu._native") if name in sys.modules]))
        """
    )
    assert loaded == []


def test_report_says_what_runs():
    from kt_ops_cpu.plugin import kt_report

    lines = list(kt_report(probe_env("cpu")))
    assert lines[0].startswith(f"variant {variant()}; usable here: c")
    assert lines[1].startswith("threads ")


def test_formats_match_the_native_table():
    from kt_core.weights import LAYOUTS, QuantType

    lib = native().lib
    for quant in QuantType:
        number = LAYOUTS[quant].ggml
        if number is None:
            continue
        block = (lib.kt_cpu_block_values(number), lib.kt_cpu_block_bytes(number))
        layout = LAYOUTS[quant]
        served = (layout.block_size, layout.block_bytes) if quant in FORMATS else (0, 0)
        assert block == served, quant
