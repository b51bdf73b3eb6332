"""A model spread over two GPUs gives the logits of one, in both phases."""

from __future__ import annotations

import pytest
import torch

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.testing.tiny import write_tiny_llama

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="torch sees no two GPUs"
)

SPLIT = r"""
- match: {name: '^model\.layers\.[23]\.', class: torch.nn.Linear}
  replace: {class: kt_core.Linear, kwargs: {generate_device: 'cuda:1', prefill_device: 'cuda:1'}}
- match: {name: '^(model\.layers\.[23]\.|model\.norm$|lm_head$)'}
  replace: {class: default, kwargs: {generate_device: 'cuda:1', prefill_device: 'cuda:1'}}
"""
TRANSFER = r"""
- match: {name: '^model$'}
  replace:
    class: kt_core.DecoderModel
    kwargs: {transfer_map: {2: 'cuda:1'}}
"""


@pytest.mark.parametrize("rules", [SPLIT, TRANSFER], ids=["rules", "transfer_map"])
def test_logits_and_tokens_are_those_of_one_gpu(tmp_path, rules):
    file, path = tmp_path / "tiny.gguf", tmp_path / "rules.yaml"
    write_tiny_llama(file, layers=4, tied=False)
    path.write_text(rules)
    one = load(file, rules=None, dtype="float32", device="cuda:0")
    two = load(file, rules=path, dtype="float32", device="cuda:0")
    assert {"cuda:0", "cuda:1"} <= set(two.plan.resident)
    ids = torch.arange(3, 30)[None]
    wanted, actual = (
        forward_logits(m.model, ids, dynamic_cache(m.model), keep=0) for m in (one, two)
    )
    # The same kernels on the same device type: only where they run differs.
    torch.testing.assert_close(actual.cpu(), wanted.cpu(), rtol=0, atol=1e-5)
    assert two.generate(ids, 12).tokens == one.generate(ids, 12).tokens
