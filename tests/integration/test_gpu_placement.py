"""Models spread over CPU and GPU give the logits of the CPU alone."""

from __future__ import annotations

import pytest
import torch

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.testing.tiny import write_tiny_llama

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

# float32 on both sides; the GPU's matrix products sum in another order (tf32 is off by default).
TOLERANCE = 2e-4

SPLIT = """
- match: {name: '^model\\.layers\\.[01]\\.', class: torch.nn.Linear}
  replace: {class: kt_core.Linear, kwargs: {generate_device: cpu, prefill_device: cpu}}
- match: {name: '^model\\.layers\\.[01]\\.'}
  replace: {class: default, kwargs: {generate_device: cpu}}
- match: {name: '^model\\.embed_tokens$'}
  replace: {class: default, kwargs: {generate_device: cpu}}
"""
PHASES = """
- match: {class: torch.nn.Linear}
  replace: {class: kt_core.Linear, kwargs: {prefill_device: 'cuda:0', generate_device: cpu}}
"""
HEAD_ON_CPU = """
- match: {name: ^lm_head$}
  replace: {class: kt_core.Linear, kwargs: {generate_device: cpu, prefill_device: cpu}}
- match: {name: '^model\\.norm$|layernorm$'}
  replace: {class: default, kwargs: {generate_device: cpu}}
"""
TRANSFER = """
- match: {class: torch.nn.Linear}
  replace: {class: kt_core.Linear}
- match: {name: ^model$}
  replace: {class: kt_core.DecoderModel, kwargs: {transfer_map: {1: cpu, 3: 'cuda:0'}}}
"""


@pytest.mark.parametrize("rules", [SPLIT, PHASES, HEAD_ON_CPU, TRANSFER, None], ids=range(5))
def test_logits_do_not_depend_on_placement(tmp_path, rules):
    file = tmp_path / "tiny.gguf"
    original = write_tiny_llama(file, layers=4)
    path = None
    if rules is not None:
        path = tmp_path / "rules.yaml"
        path.write_text(rules)
    loaded = load(file, rules=path, dtype="float32", device="cuda:0")
    ids = torch.arange(3, 30)[None]
    with torch.inference_mode():
        expected = original(ids).logits
    actual = forward_logits(loaded.model, ids, dynamic_cache(loaded.model), keep=0).cpu()
    limit = TOLERANCE * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=limit)
    cache = dynamic_cache(loaded.model)
    steps = [forward_logits(loaded.model, ids[:, at : at + 1], cache) for at in range(27)]
    torch.testing.assert_close(torch.cat(steps, 1).cpu(), expected, rtol=0, atol=limit)
    assert len(loaded.generate("hello", 4)) <= 4
