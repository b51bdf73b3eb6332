"""A model with the fused operators, called as transformers' users call it."""

from __future__ import annotations

import pytest
import torch

from kt_core import load
from kt_core.models.hf import _cache_keyword, dynamic_cache, embedding_of, forward_logits
from kt_core.operators.fused import _FusedStep, _FusedSum
from kt_core.testing.tiny import write_tiny_llama

IDS = torch.tensor([[5, 60, 7, 81, 9, 100, 11, 12]])
RULES = """\
- match: {class: transformers.models.llama.modeling_llama.LlamaDecoderLayer}
  replace: {class: kt_ops_cpu.DecoderLayer}
  recursive: true
- match: {class: transformers.models.llama.modeling_llama.LlamaAttention}
  replace: {class: kt_ops_cpu.Attention}
  recursive: true
- match: {class: transformers.models.llama.modeling_llama.LlamaRMSNorm}
  replace: {class: kt_ops_cpu.RMSNorm}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fused")
    reference = write_tiny_llama(folder / "tiny.gguf")
    (folder / "rules.yaml").write_text(RULES)
    fused = load(folder / "tiny.gguf", rules=folder / "rules.yaml", dtype="float32").model
    kinds = [sum(isinstance(m, kind) for m in fused.modules()) for kind in (_FusedStep, _FusedSum)]
    assert kinds == [2, 2]
    return fused, reference


def last_logits(model, mask):
    cache = dynamic_cache(model)
    options = {_cache_keyword(type(model).forward): cache, "use_cache": True}
    positions = torch.tensor([[IDS.shape[1] - 1]])
    with torch.inference_mode():
        model(input_ids=IDS[:, :-1], attention_mask=mask[:, :-1], **options)
        result = model(
            input_ids=IDS[:, -1:], attention_mask=mask, position_ids=positions, **options
        )
    return result.logits[0, -1]


@pytest.mark.parametrize("hidden", [0, 1, 4])
def test_tokens_that_a_mask_hides_are_not_attended_to(models, hidden):
    mask = torch.ones_like(IDS)
    mask[:, :hidden] = 0
    ours, theirs = (last_logits(model, mask) for model in models)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_norms_read_weights_as_the_dtype_they_have(models, dtype):
    norm = models[0].model.norm
    x = torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0))
    expected = norm(x)
    # One rounding of the input and one of the result.
    torch.testing.assert_close(norm(x.to(dtype)).float(), expected, rtol=2e-2, atol=1e-3)


def test_activations_of_another_dtype_do_not_reach_the_kernels(models):
    fused = models[0]
    embedded = embedding_of(fused)(IDS).bfloat16()
    with pytest.raises(RuntimeError, match="dtype"):
        forward_logits(fused, embedded, dynamic_cache(fused))
