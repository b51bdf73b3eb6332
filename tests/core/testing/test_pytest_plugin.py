"""What kt-core brings to an author's test run: fixtures, the marker, and no cost at start."""

from __future__ import annotations

import pytest

from kt_core.testing import check_model

TEST = """
import pytest

@pytest.mark.kt_kernel("kt_core.torch_linear", "{device}")
def test_it(kt_registry):
    assert kt_registry.kernel("kt_core.torch_linear")
"""
RUN = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-W",
       "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip


def run(child, folder, text: str, **environ: str):
    file = folder / "test_it.py"
    file.write_text(text)
    return child(*RUN, "--rootdir", str(folder), str(file), **environ)


def test_a_test_runs_where_the_probe_accepts(child, tmp_path):
    assert "1 passed" in run(child, tmp_path, TEST.format(device="cpu")).stdout


def test_a_test_is_skipped_with_the_probes_reason(child, tmp_path):
    done = run(child, tmp_path, TEST.format(device="tpu"))
    assert done.returncode == 0
    assert "1 skipped" in done.stdout
    assert 'kt_core.torch_linear cannot run on tpu: kt has no device "tpu"' in done.stdout


def test_a_skip_can_be_forbidden(child, tmp_path):
    done = run(child, tmp_path, TEST.format(device="tpu"), KT_TEST_NO_SKIP="1")
    assert done.returncode == 1
    assert "KT_TEST_NO_SKIP is set" not in done.stderr
    assert "1 error" in done.stdout or "1 failed" in done.stdout


def test_an_unknown_kernel_fails(child, tmp_path):
    done = run(
        child,
        tmp_path,
        TEST.replace("kt_core.torch_linear", "kt_core.tohrch", 1).format(device="cpu"),
    )
    assert done.returncode == 1
    assert "KT215" in done.stdout


def test_it_imports_nothing_heavy(child):
    code = (
        "import sys\nimport kt_core.testing.pytest_plugin\nimport kt_core.testing\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = child("-c", code)
    assert done.returncode == 0, done.stderr


def test_files_are_made_once(kt_tiny_llama, kt_tiny_moe):
    assert kt_tiny_llama(quantization="Q8_0") == kt_tiny_llama(quantization="Q8_0")
    assert kt_tiny_llama(quantization="Q8_0") != kt_tiny_llama()
    assert kt_tiny_moe() != kt_tiny_llama()


@pytest.fixture
def rules(tmp_path):
    def write(text: str):
        (tmp_path / "rules.yaml").write_text(text)
        return tmp_path / "rules.yaml"

    return write


LINEARS = "- {match: {class: torch.nn.Linear}, replace: {class: kt_core.Linear}}\n"


def test_a_model_by_rules_equals_itself(kt_tiny_llama, kt_tiny_moe, rules):
    check_model(kt_tiny_llama(), rules(LINEARS), uses=["kt_core.torch_linear"], tolerance=1e-5)
    experts = "- {match: {name: mlp.experts$}, replace: {class: kt_core.Experts}}\n"
    check_model(kt_tiny_moe(), rules(experts), uses=["kt_core.torch_experts"], tolerance=1e-5)


def test_rules_that_use_nothing_are_found(kt_tiny_llama, rules):
    nothing = rules("- {match: {name: ^nothing$}, replace: {class: kt_core.Linear}}\n")
    with pytest.raises(AssertionError, match=r"the plan does not use kt_core\.torch_linear"):
        check_model(kt_tiny_llama(), nothing, uses=["kt_core.torch_linear"], tolerance=1)


def test_logits_that_differ_are_found(kt_tiny_llama, rules, monkeypatch):
    from kt_core.operators.torch_linear import TorchLinear

    forward = TorchLinear.forward
    monkeypatch.setattr(TorchLinear, "forward", lambda self, x: forward(self, x) * 1.01)
    with pytest.raises(AssertionError, match="the logits differ by"):
        check_model(kt_tiny_llama(), rules(LINEARS), uses=[], tolerance=1e-5)
