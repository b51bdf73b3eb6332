"""Skips what this machine cannot run, by the operator's own probe, and builds libraries to judge."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

KERNEL = "kt_ops_amd_blis.moe_int8"

pytest.importorskip("kt_ops_amd_blis", reason="kt-ops-amd-blis is not installed")


@pytest.fixture(scope="session")
def blis():
    """The loaded library; skips where the probe rejects the kernel."""
    from kt_core.registry.registry import default_registry
    from kt_core.registry.specs import Rejected

    registry = default_registry()
    found = registry.kernel(KERNEL)
    assert found is not None, "kt-ops-amd-blis is importable but not registered"
    result = registry.probe(found.spec, "cpu")
    if isinstance(result, Rejected):
        pytest.skip("; ".join(result.reasons))
    from kt_ops_amd_blis.library import library

    return library()


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory):
    """Return a function that makes a shared library of C source and returns its path."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make libraries with")

    def build(source: str, name: str = "libblis.so", *options: str) -> Path:
        folder = tmp_path_factory.mktemp("library")
        (folder / "source.c").write_text(source)
        command = [compiler, "-shared", "-fPIC", "-O2", "source.c", "-o", name, *options]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return folder / name

    return build


# A stand-in for BLIS: the three entry points in plain C. Its "reordering" copies the matrix row-major.
REFERENCE_BLIS = """
#include <stdint.h>
#include <string.h>
int64_t bli_info_get_int_type_size(void) { return 64; }
const char *bli_info_get_version_str(void) { return "stand-in 1.0"; }
uint64_t aocl_get_reorder_buf_size_s8s8s32os32(char order, char trans, char m, int64_t k, int64_t n)
{ return (uint64_t)(k * n); }
void aocl_reorder_s8s8s32os32(char order, char trans, char m, const int8_t *in, int8_t *out,
                              int64_t k, int64_t n, int64_t ld)
{ for (int64_t i = 0; i < k; i++) for (int64_t j = 0; j < n; j++)
    out[i * n + j] = (order == 'r') == (trans == 'n') ? in[i * ld + j] : in[j * ld + i]; }
void aocl_gemm_s8s8s32os32(char order, char ta, char tb, int64_t m, int64_t n, int64_t k,
                           int32_t alpha, const int8_t *a, int64_t lda, char fa, const int8_t *b,
                           int64_t ldb, char fb, int32_t beta, int32_t *c, int64_t ldc, void *post)
{ for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) {
    int32_t sum = 0;
    for (int64_t l = 0; l < k; l++) sum += a[i * lda + l] * b[l * ldb + j];
    c[i * ldc + j] = alpha * sum + (beta ? beta * c[i * ldc + j] : 0); } }
"""


@pytest.fixture(scope="session")
def reference_blis():
    """C source of a library that computes right."""
    return REFERENCE_BLIS
