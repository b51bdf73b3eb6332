"""Decoding over a cache of fixed size equals decoding over a growing one; on a GPU it is captured."""

from __future__ import annotations

import weakref

import pytest
import torch

from kt_core.models.family import num_experts
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.models.hf_static import can_be_fixed
from kt_core.runtime import graph
from kt_core.runtime.graph import GraphDecoder, Unsuitable, graph_device, room_for
from kt_core.runtime.load import load

from .gguf_of_model import write_gguf
from .tiny_models import CASES

PROMPT, STEPS = 5, 14
# Unused room takes part in sums as zeros, so their order may differ; logits here are about 1.
TOLERANCE = 2e-5
NOT_FIXED = {"qwen3_next"}
"""Linear attention keeps states instead of keys; these models decode step by step."""


def device():
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture
def small_rooms(monkeypatch):
    """A first cache that is too small for the answer, so that every test moves to a larger one."""
    monkeypatch.setattr(graph, "_SMALLEST_ROOM", 8)


@pytest.fixture(params=[c for c in CASES if c.model_type not in NOT_FIXED], ids=str)
def model(request):
    """On the GPU where there is one and the model can be captured: transformers' experts cannot."""
    model = request.param.build()
    return model if num_experts(model.config) else model.to(device())


def tokens(model):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, model.config.vocab_size, (1, PROMPT + STEPS), generator=generator)


def prefilled(model, ids):
    cache = dynamic_cache(model)
    forward_logits(model, ids[:, :PROMPT], cache)
    return cache


def decoded(model, ids):
    decoder = GraphDecoder(model, prefilled(model, ids), 1, model.lm_head.weight.device)
    logits = [decoder.step(ids[:, at : at + 1]).clone() for at in range(PROMPT, PROMPT + STEPS)]
    decoder.close()
    return torch.stack(logits)


def test_equals_the_growing_cache(model, small_rooms):
    ids = tokens(model)
    cache = prefilled(model, ids)
    assert can_be_fixed(cache)
    expected = [
        forward_logits(model, ids[:, at : at + 1], cache)[0, -1]
        for at in range(PROMPT, PROMPT + STEPS)
    ]
    torch.testing.assert_close(decoded(model, ids), torch.stack(expected), rtol=0, atol=TOLERANCE)


def llama():
    return next(case for case in CASES if case.model_type == "llama").build().to(device())


def test_the_next_sequence_takes_over_the_captured_step(small_rooms):
    model = llama()
    ids = tokens(model)
    first = decoded(model, ids)
    kept = graph._spare[model]
    torch.testing.assert_close(decoded(model, ids), first, rtol=0, atol=TOLERANCE)
    assert graph._spare[model] is kept


def test_two_sequences_at_once_do_not_share_a_cache(small_rooms):
    model = llama()
    ids = tokens(model)
    alone = decoded(model, ids)
    both = [GraphDecoder(model, prefilled(model, ids), STEPS, device()) for _ in range(2)]
    for at in range(PROMPT, PROMPT + STEPS):
        for decoder in both:
            logits = decoder.step(ids[:, at : at + 1])
            torch.testing.assert_close(logits, alone[at - PROMPT], rtol=0, atol=TOLERANCE)


def test_a_captured_step_does_not_keep_the_model_alive(small_rooms):
    model = llama()
    decoded(model, tokens(model))
    gone = weakref.ref(model)
    del model
    assert gone() is None


def test_room_is_a_power_of_two():
    assert [room_for(n) for n in (1, 512, 513, 3000)] == [512, 512, 1024, 4096]


def test_says_why_a_model_is_not_captured(small_rooms):
    case = next(case for case in CASES if case.model_type in NOT_FIXED)
    model = case.build().to(device())
    cache = prefilled(model, tokens(model))
    assert not can_be_fixed(cache)
    with pytest.raises(Unsuitable, match=r"cache has layers|the model is on cpu"):
        graph_device(model, cache)


HOST = """
- match: {name: '\\.mlp\\.experts$'}
  replace: {class: kt_core.Experts, kwargs: {generate_device: cpu, out_device: cuda}}
- match: {name: '^model\\.layers\\.1\\.', class: torch.nn.Linear}
  replace: {class: kt_core.Linear, kwargs: {generate_device: cpu, prefill_device: cpu, out_device: cuda}}
- match: {name: '^model\\.embed_tokens$'}
  replace: {class: default, kwargs: {generate_device: cpu}}
- match: {name: '.'}
  replace: {class: default, kwargs: {generate_device: cuda}}
"""


@pytest.mark.gpu
def test_kernels_on_the_host_break_the_graph(tmp_path, small_rooms):
    case = next(case for case in CASES if case.model_type == "qwen3_moe")
    write_gguf(case.build(), tmp_path / "tiny.gguf", case.gguf, "F32", case.style)
    (tmp_path / "rules.yaml").write_text(HOST)
    loaded = load(
        tmp_path / "tiny.gguf", rules=tmp_path / "rules.yaml", dtype="float32", device="cuda:0"
    )
    model, ids = loaded.model, tokens(loaded.model)
    cache = prefilled(model, ids)
    assert graph_device(model, cache) == device()
    expected = [
        forward_logits(model, ids[:, at : at + 1], cache)[0, -1]
        for at in range(PROMPT, PROMPT + STEPS)
    ]
    for _ in range(2):
        actual = decoded(model, ids)
        torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=TOLERANCE)
