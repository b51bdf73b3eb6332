"""A MoE made of a dense model answers as the dense model does, as Mixtral and as Qwen2-MoE."""

from __future__ import annotations

import pytest
import torch

from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.rules.model import Rule, RuleSet
from kt_core.runtime.load import load
from kt_core.testing.moe_from_dense import moe_from_dense
from kt_core.testing.tiny import write_tiny_llama
from kt_core.weights import open_weights

EXPERTS = RuleSet("<test>", (Rule(0, r"\.experts$", None, "kt_core.Experts", {}, False, False),))

# Largest difference of any logit, as a share of the largest logit. F32 differs by the order of sums
# alone; F16 rounds each weight by 2**-11, Q8_0 to one of 255 steps of its block's largest.
BOUNDS = {"F32": 1e-5, "F16": 2e-3, "Q8_0": 5e-2}

SHAPES = [
    pytest.param({"family": "mixtral", "experts": 4}, id="mixtral-4"),
    pytest.param({"family": "mixtral", "experts": 3}, id="mixtral-3"),
    pytest.param({"family": "qwen2_moe", "experts": 2, "shared": 64}, id="qwen2-moe"),
]
CLASSES = {"mixtral": "MixtralForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM"}


def all_logits(model, ids):
    return forward_logits(model, ids, dynamic_cache(model), keep=0)


def check(dense, moe, ids, bound):
    expected, found = all_logits(dense, ids), all_logits(moe, ids)
    limit = bound * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("quantization", BOUNDS)
def test_a_tiny_model_gives_the_same_logits(shape, quantization, tmp_path):
    write_tiny_llama(tmp_path / "dense.gguf", intermediate=384)
    moe_from_dense(
        tmp_path / "dense.gguf", tmp_path / "moe.gguf", quantization=quantization, **shape
    )
    dense = load(tmp_path / "dense.gguf", rules=None, dtype="float32", device="cpu")
    moe = load(tmp_path / "moe.gguf", rules=EXPERTS, dtype="float32", device="cpu")
    assert moe.model.config.architectures == [CLASSES[shape["family"]]]
    with open_weights(tmp_path / "moe.gguf") as source:
        assert source.tensors["blk.0.ffn_up_exps.weight"].type == quantization
    check(dense.model, moe.model, torch.arange(3, 40)[None], BOUNDS[quantization])
    assert moe.tokenizer.get_vocab() == dense.tokenizer.get_vocab()
    assert moe.tokenizer.chat_template == dense.tokenizer.chat_template


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"family": "mixtral", "experts": 8, "quantization": "Q8_0"},
        {"family": "qwen2_moe", "experts": 8, "shared": 512, "quantization": "F16"},
    ],
    ids=["mixtral-q8_0", "qwen2-moe-f16"],
)
def test_smollm2_answers_the_same(smollm2, options, tmp_path):
    moe_from_dense(smollm2, tmp_path / "moe.gguf", **options)
    dense = load(smollm2, rules=None, dtype="float32", device="cpu")
    moe = load(tmp_path / "moe.gguf", rules=EXPERTS, dtype="float32", device="cpu")
    question = "What is the capital of France?"
    check(dense.model, moe.model, dense.prompt(question), BOUNDS[options["quantization"]])
    answers = [m.generate(question, 24) for m in (dense, moe)]
    assert "Paris" in answers[0].text
    assert answers[0].tokens == answers[1].tokens


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "llama"}, "family must be one of"),
        ({"experts": 5}, "cannot be dealt to 5 experts"),
        ({"experts": 2, "quantization": "Q8_0"}, "widths in blocks of 32, got 48"),
        ({"experts": 0}, "cannot be dealt to 0 experts"),
        ({"family": "qwen2_moe"}, "needs shared neurons"),
        ({"shared": 32}, "Mixtral has none"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options, said, tmp_path):
    write_tiny_llama(tmp_path / "dense.gguf")
    with pytest.raises(ValueError, match=said):
        moe_from_dense(tmp_path / "dense.gguf", tmp_path / "moe.gguf", **options)


def test_only_a_dense_llama_is_taken(tmp_path):
    write_tiny_llama(tmp_path / "dense.gguf")
    moe_from_dense(tmp_path / "dense.gguf", tmp_path / "moe.gguf", experts=4)
    with pytest.raises(ValueError, match="no dense llama file"):
        moe_from_dense(tmp_path / "moe.gguf", tmp_path / "again.gguf")
