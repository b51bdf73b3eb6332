"""Every family: a file written from a transformers model gives that model back."""

from __future__ import annotations

import pytest
import torch

from kt_core import Accepted
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.registry.registry import default_registry
from kt_core.rules.model import Rule, RuleSet
from kt_core.runtime.load import load, prepare

from .gguf_of_model import write_gguf
from .tiny_models import CASES

# Same float32 weights, same operations; only the order of sums may differ.
TOLERANCE = 1e-5


def cpu_kernels():
    found = default_registry().kernel("kt_ops_cpu.experts")
    return found is not None and isinstance(default_registry().probe(found.spec, "cpu"), Accepted)


PLAIN = RuleSet("<test>", ())
OPERATORS = RuleSet(
    "<test>",
    (
        Rule(0, r"\.experts$", None, "kt_core.Experts", {}, False, False),
        Rule(1, None, "torch.nn.Linear", "kt_core.Linear", {}, True, False),
    ),
)


class Reference:
    """A model, two files of it, and what it says about one prompt."""

    def __init__(self, case, folder):
        self.case = case
        self.files = {}
        self.logits = {}
        self.config = None
        for quantization in ("F32", case.quantization):
            model = case.build(exact=quantization != "F32")
            self.files[quantization] = folder / f"{quantization}.gguf"
            write_gguf(model, self.files[quantization], case.gguf, quantization, case.style)
            with torch.inference_mode():
                self.logits[quantization] = model(prompt(model)).logits
            self.config = model.config


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Matrices this small are slower on several threads, on a busy machine by far."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def prompt(model):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, model.config.vocab_size, (1, 24), generator=generator)


@pytest.fixture(scope="module")
def reference(request, tmp_path_factory):
    return Reference(request.param, tmp_path_factory.mktemp("family"))


def each_family(function):
    return pytest.mark.parametrize("reference", CASES, ids=str, indirect=True)(function)


@each_family
@pytest.mark.parametrize(
    "rules", [PLAIN, OPERATORS, "torch"], ids=["as-is", "operators", "shipped"]
)
def test_logits_equal_the_original(reference, rules):
    loaded = load(reference.files["F32"], rules=rules, dtype="float32", device="cpu")
    assert not [p for p in loaded.plan.problems if p.code == "KT333"]
    if rules is not PLAIN:
        operators = {module.operator for module in loaded.plan.modules}
        assert "kt_core.Linear" in operators
        assert ("kt_core.Experts" in operators) == any(m.experts for m in loaded.plan.modules)
    check_equal(loaded.model, reference.logits["F32"])


@pytest.mark.skipif(not cpu_kernels(), reason="kt-ops-cpu is not installed, or cannot run here")
@each_family
def test_the_shipped_rules_for_the_cpu_give_the_original(reference):
    # Of a plain file the compiled kernels lose nothing; packed blocks meet rounded activations.
    loaded = load(reference.files["F32"], rules="cpu", dtype="float32", device="cpu")
    check_equal(loaded.model, reference.logits["F32"])


@each_family
def test_a_quantised_file_gives_the_original_too(reference):
    quantization = reference.case.quantization
    loaded = load(reference.files[quantization], rules=OPERATORS, dtype="float32", device="cpu")
    assert any(quantization in module.types for module in loaded.plan.modules)
    check_equal(loaded.model, reference.logits[quantization])


def check_equal(model, expected):
    """All logits of one prompt, and those of two tokens decoded on top of a cache."""
    ids = prompt(model)
    limit = TOLERANCE * float(expected.abs().max())
    cache = dynamic_cache(model)
    prefill = forward_logits(model, ids[:, :22], cache, keep=0)
    torch.testing.assert_close(prefill, expected[:, :22], rtol=0, atol=limit)
    for at in (22, 23):
        step = forward_logits(model, ids[:, at : at + 1], cache)
        torch.testing.assert_close(step, expected[:, at : at + 1], rtol=0, atol=limit)


# What a file does not record: Mistral's sliding window, which no release after the first uses.
NOT_STORED = {"architectures", "dtype", "sliding_window"}


@each_family
def test_the_configuration_is_that_of_the_original(reference):
    prepared = prepare(reference.files["F32"], rules=None, device="cpu")
    prepared.source.close()
    expected, found = reference.config.to_dict(), prepared.model.config.to_dict()
    left_out = set(NOT_STORED)
    if expected["model_type"] == "mistral":  # stored as a Llama
        left_out.add("model_type")
    if (
        expected["rope_parameters"].get("rope_type") == "llama3"
    ):  # stored as divisors of frequencies
        left_out.add("rope_parameters")
    shared = (expected.keys() & found.keys()) - left_out
    assert len(shared) > 20
    assert {key: found[key] for key in shared} == {key: expected[key] for key in shared}


@each_family
def test_in_bfloat16_only_what_decides_routes_stays_float32(reference):
    loaded = load(reference.files["F32"], rules=OPERATORS, dtype="bfloat16", device="cpu")
    wide = {n for n, t in loaded.model.state_dict().items() if t.dtype is torch.float32}
    biases = {n for n in loaded.model.state_dict() if n.endswith("e_score_correction_bias")}
    # Newer releases of transformers keep the routers of some families wide as well.
    assert biases <= wide <= biases | {n for n in wide if n.endswith("mlp.gate.weight")}
    expected = reference.logits["F32"]
    with torch.inference_mode():
        found = loaded.model(prompt(loaded.model)).logits
    assert found.dtype is torch.bfloat16
    # Eight bits of mantissa, and now and then another expert: alike on the whole, not in each value.
    error = (found.float() - expected).norm() / expected.norm()
    assert error < 0.3
