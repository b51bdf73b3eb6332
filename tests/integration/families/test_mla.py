"""Latent attention over the compressed cache equals transformers' own, in both of its forms."""

from __future__ import annotations

import pytest
import torch

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.models.hf_static import FixedCache
from kt_core.operators.mla import MlaAttention
from kt_core.rules.model import Rule, RuleSet
from kt_core.runtime.generate import prefill_and_generate
from kt_core.runtime.load import prepare

from .gguf_of_model import Style, write_gguf
from .tiny_models import CASES

# The same float32 weights; the absorbed form multiplies them in another order.
TOLERANCE = 2e-5

MLA = tuple(case for case in CASES if case.gguf == "deepseek2")
LENGTH = 29

FORMS = {
    "expanded": {"decode_max_tokens": 1},
    "absorbed": {"absorb_for_prefill": True},
    "absorbed-in-blocks": {"absorb_for_prefill": True, "chunck_size": 3},
    "whichever-is-less-work": {},
}


def rules(kwargs, attention="kt_core.MlaAttention"):
    return RuleSet(
        "<test>",
        (
            Rule(0, r"\.self_attn$", None, attention, kwargs, True, False),
            Rule(1, r"^(?!.*kv_b_proj$)", "torch.nn.Linear", "kt_core.Linear", {}, True, False),
        ),
    )


def within(found, expected):
    limit = TOLERANCE * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=limit)


def prompt(model):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, model.config.vocab_size, (1, LENGTH), generator=generator)


@pytest.fixture(scope="module", params=MLA, ids=str)
def original(request, tmp_path_factory):
    """A model, the file it was written to, and its logits."""
    case = request.param
    file = tmp_path_factory.mktemp("mla") / "model.gguf"
    model = case.build()
    write_gguf(model, file, case.gguf, "F32", case.style)
    with torch.inference_mode():
        return model, file, model(prompt(model)).logits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [LENGTH, 10, 1], ids="chunk-{}".format)
def test_logits_equal_the_original(original, form, chunk):
    model, file, expected = original
    loaded = load(file, rules=rules(FORMS[form]), dtype="float32", device="cpu")
    layers = loaded.model.model.layers
    assert all(isinstance(layer.self_attn, MlaAttention) for layer in layers)
    cache = dynamic_cache(loaded.model)
    ids = prompt(model)
    for start in range(0, LENGTH, chunk):
        found = forward_logits(loaded.model, ids[:, start : start + chunk], cache, keep=0)
        within(found, expected[:, start : start + chunk])


def test_the_cache_holds_only_latents_and_the_shared_key(original):
    model, file, _ = original
    loaded = load(file, rules=rules({}), dtype="float32", device="cpu")
    cache = dynamic_cache(loaded.model)
    forward_logits(loaded.model, prompt(model), cache)
    config = model.config
    per_token = (config.kv_lora_rank + config.qk_rope_head_dim) * 4
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == config.num_hidden_layers * LENGTH * per_token
    assert loaded.plan.cache.bytes_per_token == config.num_hidden_layers * per_token


def test_generating_token_by_token_gives_the_original_s_choices(original):
    model, file, _ = original
    loaded = load(file, rules=rules({}), dtype="float32", device="cpu")
    ids = prompt(model)
    with torch.inference_mode():
        expected = model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=True)
    found = prefill_and_generate(loaded.model, None, ids, 12, chunk_size=7)
    assert list(found) == expected[0, LENGTH:].tolist()


def test_a_cache_of_fixed_size_gives_the_same_step(original):
    """The cache of a captured step is longer than what was seen; the mask hides the rest."""
    model, file, expected = original
    loaded = load(file, rules=rules({}), dtype="float32", device="cpu")
    growing = dynamic_cache(loaded.model)
    ids = prompt(model)
    forward_logits(loaded.model, ids[:, :-1], growing)
    fixed = FixedCache.like(growing, 64)
    fixed.take(growing)
    within(forward_logits(loaded.model, ids[:, -1:], fixed), expected[:, -1:])


def test_decoding_does_not_copy_the_cache(original):
    model, file, _ = original
    loaded = load(file, rules=rules({}), dtype="float32", device="cpu")
    cache = dynamic_cache(loaded.model)
    ids = prompt(model)
    forward_logits(loaded.model, ids[:, :10], cache)
    before = [layer.keys.data_ptr() for layer in cache.layers]
    for at in range(10, LENGTH):
        forward_logits(loaded.model, ids[:, at : at + 1], cache)
    assert [layer.keys.data_ptr() for layer in cache.layers] == before


@pytest.mark.parametrize("quantization", ["F16", "Q8_0"])
def test_both_spellings_of_kv_b_give_equal_logits(tmp_path, quantization):
    case = next(case for case in MLA if case.id == "deepseek-v3")
    model = case.build(exact=True)
    found = []
    for kv_b in ("whole", "split", "flat"):
        file = tmp_path / f"{kv_b}.gguf"
        write_gguf(model, file, case.gguf, quantization, Style(kv_b=kv_b))
        loaded = load(file, rules=rules({}), dtype="float32", device="cpu")
        found.append(forward_logits(loaded.model, prompt(model), None, keep=0))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)


def test_packed_projections_stay_packed(tmp_path):
    case = next(case for case in MLA if case.id == "deepseek-v3")
    file = tmp_path / "model.gguf"
    write_gguf(case.build(exact=True), file, case.gguf, "Q8_0", case.style)
    prepared = prepare(file, rules=rules({}), dtype="float32", device="cpu")
    prepared.source.close()
    attention = "model.layers.1.self_attn"
    assert prepared.plan.module(f"{attention}.kv_b_proj").operator == "default"
    packed = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
    for name in packed:
        module = prepared.plan.module(f"{attention}.{name}")
        assert (module.operator, module.types) == ("kt_core.Linear", ("Q8_0",))


def test_the_name_that_ktransformers_gave_it(original):
    _, file, expected = original
    name = "ktransformers.operators.attention.KDeepseekV2Attention"
    loaded = load(file, rules=rules({"absorb_for_prefill": False}, name), dtype="float32")
    within(forward_logits(loaded.model, prompt(loaded.model), None, keep=0), expected)


def test_a_kv_b_proj_that_a_kernel_takes_is_refused(original):
    _, file, _ = original
    given = RuleSet(
        "<test>",
        (*rules({}).rules[:1], Rule(1, "kv_b_proj$", None, "kt_core.Linear", {}, True, False)),
    )
    prepared = prepare(file, rules=given, device="cpu")
    prepared.source.close()
    found = [problem for problem in prepared.plan.errors if problem.code == "KT336"]
    assert len(found) == prepared.model.config.num_hidden_layers
    assert "kv_b_proj" in found[0].message
